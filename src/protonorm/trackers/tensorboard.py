"""Write a run for TensorBoard into <run>/tensorboard/, anew each time: everything that came before is in the record."""

from __future__ import annotations

import shutil
import time
from typing import Any

import numpy as np

from protonorm.analysis.plain_text import markdown_text
from protonorm.core.text import visible
from protonorm.federation.rounds import Round
from protonorm.report.drawing import any_letters
from protonorm.report.figures import heat_map
from protonorm.runs import layout
from protonorm.runs.run import Run
from protonorm.trackers import scalars

FOLDER = "tensorboard"
SHOWN = 5  # rounds whose prototypes the projector gets
SHARES = np.linspace(0, 1, 21)  # edges of the histograms of accuracies
BINS = 20  # of other histograms
FLUSH = 3600  # seconds; each round is flushed as it ends

CHARTS: dict[str, dict[str, Any]] = {  # what belongs together: all rules beside the majority, all distances
    "accuracy": {
        name: ["Multiline", [f"^accuracy/(?!best/|last/|reported/)[^/]+/{name}$"]]
        for name in ("pooled", "mean", "worst")
    },
    "validation": {"mean": ["Multiline", ["^validation/[^/]+/mean$"]]},
    "client": {name: ["Multiline", [f"^client/.+/{name}$"]] for name in ("accuracy", "validation")},
    "prototypes": {"distance": ["Multiline", ["^prototypes/distance/"]]},
}


class TensorBoard:
    """Follow a run with torch's writer."""

    def __init__(self) -> None:
        """Refuse before anything begins if TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter, summary
        except ModuleNotFoundError as error:
            raise ValueError(
                f"tracker=tensorboard needs a package that is not installed ({error.name}): "
                "pip install 'protonorm[track]'"
            ) from None
        self._open: Any = SummaryWriter
        self._session: Any = summary.hparams
        self._writer: Any = None
        self._run: Run | None = None  # as it was at the beginning
        self._majority: dict[str, float] = {}
        self._clock = 0.0  # when the round that is being told ended

    def begin(self, run: Run) -> None:
        """Begin the log: settings, who holds what, and the majority."""
        folder = run.folder / FOLDER
        shutil.rmtree(folder, ignore_errors=not folder.exists())
        # A TensorBoard that has read the log from before forgets it, from step 0 on.
        self._writer = self._open(str(folder), purge_step=0, flush_secs=FLUSH)
        self._run = run
        self._majority = scalars.majority(run)
        self._clock = _begin_time(run)
        self._writer.add_text("settings", scalars.settings_table(run), 0)
        self._writer.add_text("majority", _majority_text(self._majority), 0)
        with any_letters():
            self._writer.add_figure("partition", heat_map(run), 0)
        self._writer.add_custom_scalars(CHARTS)
        # The description of all sessions is left out: TensorBoard then finds the settings of all methods by itself.
        _, start, _ = self._session(_shown(scalars.settings(run)), {})
        self._writer.file_writer.add_summary(start)
        self._writer.flush()

    def __call__(self, round: Round) -> None:
        """Write a round, at the time when it was done."""
        assert self._run is not None
        before = round.number <= len(self._run.rounds)
        self._clock = self._clock + round.seconds.get("round", 0.0) if before else time.time()
        lists = scalars.distributions(self._run, round.record)
        named = scalars.margin_scalars(lists) | scalars.client_scalars(self._run, round.record) | self._majority
        for name, value in (scalars.scalars(round) | named).items():
            self._writer.add_scalar(visible(name), value, round.number, self._clock)
        for name, values in lists.items():
            bins: Any = SHARES if name.startswith(("accuracy/", "validation/")) else BINS
            if values.size:
                self._writer.add_histogram(visible(name), values, round.number, bins, self._clock)
        if not before:
            self._writer.flush()

    def end(self, run: Run) -> None:
        """Write what the run came to, and its prototypes; close the log."""
        done = len(run.rounds)
        for name, value in scalars.outcome(run).items():
            self._writer.add_scalar(name, value, done, self._clock)
        self._writer.add_text("reported", scalars.reported_text(run), done)
        for round in _shown_rounds(run):
            self._show_prototypes(run, round)
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
        except ValueError as error:  # one lost file is no reason to stop a run
            self._writer.add_text("prototypes", markdown_text(str(error)), round)
            return
        names = [visible(run.info.classes[k]) or "(no name)" for k in classes.tolist()]  # a line each
        self._writer.add_embedding(vectors, names, global_step=round, tag="prototypes")


def _shown(settings: dict[str, float | str]) -> dict[str, float | str]:
    """Write texts so that nothing in them is hidden: TensorBoard takes no half characters."""
    return {visible(name): visible(one) if isinstance(one, str) else one for name, one in settings.items()}


def _begin_time(run: Run) -> float:
    """Work out when a run would have begun if it had not been interrupted; now, if no round is done."""
    end = (run.folder / layout.SERVER).stat().st_mtime if run.rounds else time.time()
    return end - sum(run.seconds.values())


def _shown_rounds(run: Run) -> list[int]:
    """Choose a few of the rounds whose prototypes are recorded, the first and the last among them."""
    rounds = run.snapshots()
    chosen = np.linspace(0, len(rounds) - 1, min(SHOWN, len(rounds))).round().astype(int).tolist()
    return [rounds[position] for position in chosen]


def _majority_text(level: dict[str, float]) -> str:
    if not level:
        return "Nobody has anything to test."
    numbers = ", ".join(f"{name.rpartition('/')[2]} {100 * value:.2f} %" for name, value in level.items())
    return f"Guessing each client's most frequent class: {numbers}."
