"""How far a run is, in one line of plain text that is written over and over: for notebooks, and for whoever asks."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from protonorm.config.experiment import Experiment
from protonorm.core.progress import listening
from protonorm.core.text import visible
from protonorm.federation.rounds import Round

Watch = Callable[[Round], None]  # told of every round as it is committed

EVERY = 0.2  # seconds between two writings of work inside a round
LATE = 2.0  # seconds of work before it is worth telling of
RECENT = 100  # rounds that the time left is judged by


def in_notebook() -> bool:
    """Tell whether this process is a notebook's."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    return hasattr(shell, "kernel")


@contextmanager
def progress_line(experiment: Experiment, watch: Watch | None, wanted: bool | None) -> Iterator[Watch]:
    """Give whom to tell of rounds while this lasts: `watch`, and if it is wanted a line of text."""
    if not (in_notebook() if wanted is None else wanted):
        yield watch or _ignore
        return
    title = f"{type(experiment.algorithm).__name__}, seed {experiment.seed}"  # the key may need data that come first
    line = ProgressLine(title, experiment.rounds, experiment.algorithm.headline)

    def both(round: Round) -> None:
        line.show_round(round)
        if watch:
            watch(round)

    try:
        with listening(line):
            yield both
    finally:
        line.close()


@contextmanager
def reading_line(wanted: bool | None) -> Iterator[None]:
    """Tell of long work before the first run, such as reading data, if it is wanted or in a notebook."""
    if not (in_notebook() if wanted is None else wanted):
        yield
        return
    line = ProgressLine("", 0, "")
    try:
        with listening(line):
            yield
    finally:
        line.close()


class ProgressLine:
    """One line of text on the answer stream, written over and over."""

    def __init__(self, title: str, rounds: int, headline: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._rounds, self._headline, self._clock = title, rounds, headline, clock
        self._begun: dict[str, float] = {}
        self._written, self._width = -EVERY, 0
        self._seconds: deque[float] = deque(maxlen=RECENT)  # of the last rounds

    def __call__(self, what: str, done: int, whole: int) -> None:
        """Tell of other long work, such as reading data, once it has taken a while."""
        now = self._clock()
        begun = self._begun.setdefault(what, now)
        if now - begun >= LATE and now - self._written >= EVERY:
            self._write(f"{what}: {done} of {whole}" if whole else f"{what}: {done}")
        if whole and done >= whole:
            del self._begun[what]  # the same work may begin again

    def show_round(self, round: Round) -> None:
        """Tell of a round that is done."""
        self._seconds.append(round.seconds["round"])
        left = sum(self._seconds) / len(self._seconds) * (self._rounds - round.number)
        found = round.record.rules.get(self._headline)
        parts = [f"{self._title}: round {round.number} of {self._rounds}"]
        parts += [f"{self._headline} {100 * found.pooled:.2f} %"] if found else []
        parts += [f"{left:.0f} s left"] if left else []
        self._write(", ".join(parts))

    def close(self) -> None:
        """Leave the line as it is."""
        if self._width:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._width = 0

    def _write(self, text: str) -> None:
        line = visible(text)
        sys.stdout.write("\r" + line.ljust(self._width))
        sys.stdout.flush()
        self._written, self._width = self._clock(), len(line)


def _ignore(_: Round) -> None:
    """Listen to nothing."""
