"""What a tracker is, and how it is told of a run: of the rounds that are recorded, of those to come, and of the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from protonorm.components import load_own
from protonorm.federation import Round
from protonorm.files import parse_json, read_lines
from protonorm.history import Run, read_run
from protonorm.registry import find
from protonorm.trackers import TRACKERS

Listener = Callable[[Round], None]


@runtime_checkable
class Tracker(Protocol):
    """Somebody who follows runs, one after the other; what they do with it decides no number."""

    def begin(self, run: Run) -> None:
        """Be told of a run before any of its rounds; `run.history` has those that are recorded already."""

    def __call__(self, round: Round) -> None:
        """Be told of a round: of each one once, in order, whether it was done now or before."""

    def end(self, run: Run) -> None:
        """Be told how the run stands when it is done, failed or interrupted."""


@dataclass(frozen=True)
class Plain:
    """A function of a round as a tracker."""

    listener: Listener

    def begin(self, run: Run) -> None:
        """Need nothing."""

    def __call__(self, round: Round) -> None:
        """Pass the round on."""
        self.listener(round)

    def end(self, run: Run) -> None:
        """Need nothing."""


def choose(value: Any) -> Tracker | None:
    """Make a tracker of a name, of a user's own file.py:Name, of an object or of a function; None for none."""
    if isinstance(value, str):
        found = load_own(value, "tracker") if ".py:" in value else find(TRACKERS, value, "tracker").load()
        value = found() if isinstance(found, type) else found
    if value is None or (isinstance(value, Tracker) and not isinstance(value, type)):
        return value
    if callable(value) and not isinstance(value, type) and not hasattr(value, "begin") and not hasattr(value, "end"):
        return Plain(value)
    raise ValueError(
        f"{value!r} is not a tracker: expected a name ({', '.join(sorted(TRACKERS))}), a function that takes a round, "
        "or an object with begin(run), __call__(round) and end(run)."
    )


@contextmanager
def tracked(tracker: Tracker | None, folder: Path) -> Iterator[Listener]:
    """Tell a tracker of a run from its first round on; what is recorded already comes from the record."""
    if tracker is None:
        yield lambda _: None
        return
    run = read_run(folder)
    tracker.begin(run)
    try:
        for round in recorded(run):
            tracker(round)
        yield tracker
    finally:
        tracker.end(read_run(folder))


def recorded(run: Run) -> list[Round]:
    """Give the committed rounds of a run as they were told when they ended."""
    path = run.folder / "timings.jsonl"
    seconds = [parse_json(line, path) for line in read_lines(path)]
    if len(seconds) < len(run.history):
        raise ValueError(f"{path} is damaged: {len(seconds)} lines for {len(run.history)} committed rounds.")
    return [Round(line["round"], line, spent) for line, spent in zip(run.history, seconds, strict=False)]
