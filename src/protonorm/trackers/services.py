"""Trackers for Weights & Biases and for MLflow; the log of a run is written anew from its record.

Without further settings nothing leaves the machine: W&B is offline unless WANDB_MODE says otherwise, and MLflow writes
into a folder beside the runs unless MLFLOW_TRACKING_URI is set.
"""

import hashlib
import os
import re
import shutil
import time
from importlib import import_module
from typing import Any

from protonorm.core.text import shortened, visible
from protonorm.federation.rounds import Round
from protonorm.runs.run import Run
from protonorm.trackers import tracker

PROJECT = "protonorm"  # name of the project, or experiment, unless the environment names another
LONGEST = 500  # characters of a parameter in MLflow
MOST = 100  # parameters in a request to MLflow; ten times as many measures


def _imported(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        needed = f"tracker={extra} needs a package that is not installed ({error.name})"
        raise ValueError(f"{needed}: pip install '.[{extra}]' in a checkout") from None


def _measures(run: Run, round: Round) -> dict[str, float]:
    extra = tracker.margin_scalars(tracker.distributions(run, round.record)) | tracker.client_scalars(run, round.record)
    return {visible(name): float(value) for name, value in (tracker.scalars(round) | extra).items()}


class WeightsAndBiases:
    """Tracker that writes runs of Weights & Biases, into `wandb` beside the runs."""

    def __init__(self) -> None:
        """Raise a ValueError if wandb is not installed."""
        self._wandb = _imported("wandb", "wandb")
        self._session: Any = None

    def begin(self, run: Run) -> None:
        """Start a run with the settings; remove what was written offline for it before."""
        id, root = hashlib.sha256(run.info.key.encode()).hexdigest()[:12], run.folder.parent
        for folder in (root / "wandb").glob(f"offline-run-*-{id}"):
            shutil.rmtree(folder)
        self._run = run
        names = {"project": os.environ.get("WANDB_PROJECT", PROJECT), "name": visible(run.info.key), "id": id}
        settings = self._wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True)
        options = {"mode": os.environ.get("WANDB_MODE", "offline"), "resume": "allow", "reinit": "create_new"}
        config = tracker.settings(run) | {"key": run.info.key}
        self._session = self._wandb.init(**names, **options, dir=str(root), config=config, settings=settings)

    def __call__(self, round: Round) -> None:
        """Write a round: its measures, and the accuracies of clients and classes as histograms."""
        lists = tracker.distributions(self._run, round.record)
        histograms = {name: self._wandb.Histogram(values) for name, values in lists.items() if values.size}
        self._session.log(_measures(self._run, round) | histograms, step=round.number)

    def end(self, run: Run) -> None:
        """Write the final results, and close the run."""
        failure = {"failure": f"round {run.failure.round}: {visible(run.failure.reason)}"} if run.failure else {}
        self._session.summary.update(tracker.outcome(run) | {"reported": tracker.reported_text(run)} | failure)
        self._session.finish(exit_code=0 if run.finished else 1)


class MLflow:
    """Tracker that writes runs of MLflow, into `mlruns` beside the runs or to MLFLOW_TRACKING_URI."""

    def __init__(self) -> None:
        """Raise a ValueError if MLflow is not installed."""
        self._tracking, self._entities = (_imported(f"mlflow.{name}", "mlflow") for name in ("tracking", "entities"))

    def begin(self, run: Run) -> None:
        """Start a run with the settings as parameters, in place of an earlier one of the same key."""
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (run.folder.parent / "mlruns").absolute().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks for consent to a folder
        self._run, self._client = run, self._tracking.MlflowClient(uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        for earlier in self._client.search_runs([experiment], f"tags.`protonorm.key` = '{run.info.key}'"):
            self._client.delete_run(earlier.info.run_id)
        made = self._client.create_run(experiment, run_name=run.info.key, tags={"protonorm.key": run.info.key})
        self._id = made.info.run_id
        settings = list(tracker.settings(run).items())
        for start in range(0, len(settings), MOST):
            some = [(_name(name), shortened(str(value), LONGEST)) for name, value in settings[start : start + MOST]]
            self._client.log_batch(self._id, params=[self._entities.Param(*item) for item in some])

    def __call__(self, round: Round) -> None:
        """Write a round's measures."""
        self._log(_measures(self._run, round), round.number)

    def end(self, run: Run) -> None:
        """Write the final results, and close the run."""
        self._log(tracker.outcome(run), len(run.rounds))
        self._client.set_tag(self._id, "reported", tracker.reported_text(run))
        if run.failure:
            self._client.set_tag(self._id, "failure", f"round {run.failure.round}: {visible(run.failure.reason)}")
        status = "FINISHED" if run.finished else "FAILED" if run.failure else "KILLED"
        self._client.set_terminated(self._id, status)

    def _log(self, values: dict[str, float], step: int) -> None:
        now, items = int(1000 * time.time()), list(values.items())
        for start in range(0, len(items), 10 * MOST):
            some = [(_name(name), float(value), now, step) for name, value in items[start : start + 10 * MOST]]
            self._client.log_batch(self._id, metrics=[self._entities.Metric(*item) for item in some])


def _name(text: str) -> str:
    """Return a name with the characters that MLflow accepts."""
    return re.sub(r"[^\w\-./ ]", "_", visible(text))
