"""TensorBoard tracker, which writes to <run>/tensorboard/; a resumed run rewrites its log from the record."""

import shutil
import time
from typing import Any

import numpy as np

from protonorm.core.text import markdown_text, visible
from protonorm.federation.rounds import Round
from protonorm.report.drawing import any_letters
from protonorm.report.figures import heat_map
from protonorm.runs import layout
from protonorm.runs.run import Run
from protonorm.trackers import tracker

FOLDER = "tensorboard"
SHOWN = 5  # maximum number of rounds whose prototypes are shown in the projector
SHARES = np.linspace(0, 1, 21)  # bin edges of accuracy histograms
BINS = 20  # of other histograms
FLUSH = 3600  # seconds; rounds are flushed explicitly

CHARTS: dict[str, dict[str, Any]] = {  # grouped curves: all rules with the majority baseline, all distances
    "accuracy": {
        name: ["Multiline", [f"^accuracy/(?!best/|last/|reported/)[^/]+/{name}$"]]
        for name in ("pooled", "mean", "worst")
    },
    "validation": {"mean": ["Multiline", ["^validation/[^/]+/mean$"]]},
    "client": {name: ["Multiline", [f"^client/.+/{name}$"]] for name in ("accuracy", "validation")},
    "prototypes": {"distance": ["Multiline", ["^prototypes/distance/"]]},
}


class TensorBoard:
    """Tracker that writes TensorBoard event files with torch's SummaryWriter."""

    def __init__(self) -> None:
        """Raise a ValueError if TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter, summary
        except ModuleNotFoundError as error:
            raise ValueError(
                f"tracker=tensorboard needs a package that is not installed ({error.name}): "
                "pip install '.[track]' in a checkout"
            ) from None
        self._open: Any = SummaryWriter
        self._session: Any = summary.hparams
        self._writer: Any = None
        self._run: Run | None = None  # as of `begin`
        self._majority: dict[str, float] = {}
        self._clock = 0.0  # end time of the current round

    def begin(self, run: Run) -> None:
        """Start the log: settings, partition and majority baseline."""
        folder = run.folder / FOLDER
        shutil.rmtree(folder, ignore_errors=not folder.exists())
        # purge_step makes a running TensorBoard discard the previous log.
        self._writer = self._open(str(folder), purge_step=0, flush_secs=FLUSH)
        self._run = run
        self._majority = tracker.majority(run)
        ended = (run.folder / layout.SERVER).stat().st_mtime if run.rounds else time.time()
        self._clock = ended - sum(run.seconds.values())  # the run's start, as if uninterrupted
        self._writer.add_text("settings", tracker.settings_table(run), 0)
        numbers = ", ".join(f"{name.rpartition('/')[2]} {100 * x:.2f} %" for name, x in self._majority.items())
        text = f"Guessing each client's most frequent class: {numbers}." if numbers else "No client has test samples."
        self._writer.add_text("majority", text, 0)
        with any_letters():
            self._writer.add_figure("partition", heat_map(run), 0)
        self._writer.add_custom_scalars(CHARTS)
        # Without an experiment summary, TensorBoard infers the hyperparameters of all methods by itself.
        texts = {
            visible(name): visible(value) if isinstance(value, str) else value  # TensorBoard rejects lone surrogates
            for name, value in tracker.settings(run).items()
        }
        _, start, _ = self._session(texts, {})
        self._writer.file_writer.add_summary(start)
        self._writer.flush()

    def __call__(self, round: Round) -> None:
        """Write a round, with its end time."""
        assert self._run is not None
        before = round.number <= len(self._run.rounds)
        self._clock = self._clock + round.seconds.get("round", 0.0) if before else time.time()
        lists = tracker.distributions(self._run, round.record)
        extra = tracker.margin_scalars(lists) | tracker.client_scalars(self._run, round.record) | self._majority
        for name, value in (tracker.scalars(round) | extra).items():
            self._writer.add_scalar(visible(name), value, round.number, self._clock)
        for name, values in lists.items():
            bins: Any = SHARES if name.startswith(("accuracy/", "validation/")) else BINS
            if values.size:
                self._writer.add_histogram(visible(name), values, round.number, bins, self._clock)
        if not before:
            self._writer.flush()

    def end(self, run: Run) -> None:
        """Write the final results and prototypes, and close the log."""
        done = len(run.rounds)
        for name, value in tracker.outcome(run).items():
            self._writer.add_scalar(name, value, done, self._clock)
        self._writer.add_text("reported", tracker.reported_text(run), done)
        rounds = run.snapshots()
        shown = np.linspace(0, len(rounds) - 1, min(SHOWN, len(rounds))).round().astype(int)  # with the first and last
        for position in shown.tolist():
            self._show_prototypes(run, rounds[position])
        if run.failure:
            reason = markdown_text(run.failure.reason)
            self._writer.add_text("failure", f"round {run.failure.round}: {reason}", done)
        if run.finished:
            _, _, end = self._session({}, {})
            self._writer.file_writer.add_summary(end)
        self._writer.close()

    def _show_prototypes(self, run: Run, round: int) -> None:
        try:
            classes, vectors = run.prototypes(round)
        except ValueError as error:  # a damaged file must not stop a run
            self._writer.add_text("prototypes", markdown_text(str(error)), round)
            return
        names = [visible(run.info.classes[k]) or "(no name)" for k in classes.tolist()]  # one line per label
        self._writer.add_embedding(vectors, names, global_step=round, tag="prototypes")
