"""Progress of a run as one line of plain text that is updated in place, with the estimated time left."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

from protonorm.core.progress import listening
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment
    from protonorm.federation.rounds import Round

Watch = Callable[["Round"], None]  # called with every committed round

EVERY = 0.2  # minimum seconds between two updates inside a round
LATE = 2.0  # seconds of work before progress is shown
RECENT = 100  # rounds that the estimate of the time left uses
LONG = 600.0  # seconds; in longer first rounds the start-up time is negligible, even on a busy machine


def in_notebook() -> bool:
    """Return whether this process runs a notebook."""
    interactive = sys.modules.get("IPython")
    return interactive is not None and hasattr(interactive.get_ipython(), "kernel")


@contextmanager
def progress_line(experiment: "Experiment | None", watch: Watch | None, enabled: bool | None) -> Iterator[Watch]:
    """Yield a callback for committed rounds: `watch`, plus a progress line if `wanted` (by default in a notebook).

    Without an experiment, the line shows long work before the first run, such as loading data.
    """
    if not (in_notebook() if enabled is None else enabled):
        yield watch or (lambda _: None)
        return
    line = ProgressLine("", 0, "")
    if experiment:  # the key would need the data, which are not loaded yet
        title = f"{type(experiment.algorithm).__name__}, seed {experiment.seed}"
        line = ProgressLine(title, experiment.rounds, experiment.algorithm.headline)

    def both(round: "Round") -> None:
        line.show_round(round)
        if watch:
            watch(round)

    try:
        with listening(line):
            yield both
    finally:
        line.close()


class TimeLeft:
    """Estimator of the time left in a run.

    The first round of a process includes start-up: worker processes, imports. It is used only while it is the only
    round, and only if it was long.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._taken: list[float] = []  # seconds of each round

    def after(self, round: "Round") -> float | None:
        """Add a round and return the estimated seconds left; None if unknown."""
        self._taken.append(round.seconds["round"])
        left, later = self._rounds - round.number, self._taken[1:][-RECENT:]
        if left and not later:
            return self._taken[0] * left if self._taken[0] >= LONG else None
        return fmean(later) * left if left else 0.0


class ProgressLine:
    """Line of text on standard output, updated in place."""

    def __init__(self, title: str, rounds: int, headline: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._rounds, self._headline, self._clock = title, rounds, headline, clock
        self._started: dict[str, float] = {}
        self._written, self._width = -EVERY, 0
        self._left = TimeLeft(rounds)

    def __call__(self, task: str, done: int, total: int) -> None:
        """Show the progress of other work, such as loading data, once it has taken `LATE` seconds."""
        now = self._clock()
        started = self._started.setdefault(task, now)
        if now - started >= LATE and now - self._written >= EVERY:
            self._write(f"{task}: {done} of {total}" if total else f"{task}: {done}")
        if total and done >= total:
            del self._started[task]  # the same work may start again

    def show_round(self, round: "Round") -> None:
        """Show a committed round."""
        left = self._left.after(round)
        accuracy = round.record.rules.get(self._headline)
        parts = [f"{self._title}: round {round.number} of {self._rounds}"]
        parts += [f"{self._headline} {100 * accuracy.pooled:.2f} %"] if accuracy else []
        parts += [f"{left:.0f} s left"] if left else []
        self._write(", ".join(parts))

    def close(self) -> None:
        """End the line."""
        if self._width:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._width = 0

    def _write(self, text: str) -> None:
        line = visible(text)
        sys.stdout.write("\r" + line.ljust(self._width))
        sys.stdout.flush()
        self._written, self._width = self._clock(), len(line)
