"""What a tracker is, and how it is told of a run: of the rounds that are recorded, of those to come, and of the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from protonorm.core.own_code import load_own, name_missing
from protonorm.core.own_failures import wrong_arguments
from protonorm.core.registry import find
from protonorm.core.types import shortened, shown
from protonorm.federation.rounds import Round
from protonorm.runs.reader import read_run
from protonorm.runs.run import Run
from protonorm.trackers import TRACKERS

Listener = Callable[[Round], None]


@runtime_checkable
class Tracker(Protocol):
    """Follows runs, one after the other; it never changes a number."""

    def begin(self, run: Run) -> None:
        """Called before any round; `run.rounds` has those that are recorded already."""

    def __call__(self, round: Round) -> None:
        """Called once for each round, in order, whether it was done now or before."""

    def end(self, run: Run) -> None:
        """Called when the run is done, has failed or was interrupted."""


@dataclass(frozen=True)
class FunctionTracker:
    """A function of a round as a tracker."""

    listener: Listener

    def begin(self, run: Run) -> None:
        """Do nothing."""

    def __call__(self, round: Round) -> None:
        """Pass the round on."""
        self.listener(round)

    def end(self, run: Run) -> None:
        """Do nothing."""


def choose(value: Any) -> Tracker | None:
    """Make a tracker of a name, of a user's own file.py:Name, of an object or of a function; None for none."""
    if isinstance(value, str):
        name_missing(value, "tracker")
        found = load_own(value, "tracker") if ".py:" in value else find(TRACKERS, shortened(value), "tracker").load()
        if isinstance(found, type) and (said := wrong_arguments(found, ())):
            raise ValueError(f"{said} A tracker is made without settings.")
        value = found() if isinstance(found, type) else found
    if value is None or (isinstance(value, Tracker) and not isinstance(value, type)):
        return value
    if callable(value) and not isinstance(value, type) and not hasattr(value, "begin") and not hasattr(value, "end"):
        return FunctionTracker(value)
    raise ValueError(
        f"{shown(value)} is not a tracker: expected a name ({', '.join(sorted(TRACKERS))}), "
        "a function that takes a round, or an object with begin(run), __call__(round) and end(run)."
    )


@contextmanager
def tracked(tracker: Tracker | None, folder: Path, rounds: int | None = None) -> Iterator[Listener]:
    """Tell a tracker of a run from its first round on; the rounds that are done already come from the record.

    Of a run that has more rounds than asked for, it hears of the first so many.
    """
    if tracker is None:
        yield lambda _: None
        return
    run = read_run(folder, rounds)
    tracker.begin(run)
    try:
        for round in recorded_rounds(run):
            tracker(round)
        yield tracker
    finally:
        tracker.end(read_run(folder, rounds))


def recorded_rounds(run: Run) -> list[Round]:
    """Give the committed rounds of a run as they were told when they ended; a time that is lost is left out."""
    times = run.seconds
    return [Round(one, {"round": times[one.round]} if one.round in times else {}) for one in run.rounds]
