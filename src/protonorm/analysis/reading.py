"""Read runs whole: damage shows here, before anything is made of a run, so that the others can go on. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from protonorm.files import damaged
from protonorm.runs.reader import read_run
from protonorm.runs.run import Run

UNREADABLE = (ValueError, OSError)  # what reading a damaged record raises
UNFIT = (KeyError, IndexError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError)


def read_whole(folder: Path, rounds: int | None = None) -> Run:
    """Read a run, or its first rounds, with all that tables, figures and pages need; what is damaged is said here."""
    try:
        run = read_run(folder, rounds)
        check_whole(run)
    except UNFIT as error:  # files that were made to deceive: their checksums are right
        raise damaged(folder, f"its files do not fit together ({type(error).__name__})") from error
    return run


def check_whole(run: Run) -> None:
    """Read who holds what and the arrays of all rounds, and condense them under every rule."""
    needed: list[object] = [run.majority, *map(run.arrays, run.rounds), *map(run.summary, run.info.rules)]
    assert needed


def read_some(folders: Iterable[Path], tell: Callable[[str], None]) -> list[Run]:
    """Read runs; of a damaged one tell what is wrong, and go on."""
    found = []
    for folder in folders:
        try:
            found.append(read_whole(folder))
        except UNREADABLE as error:
            tell(unread_reason(error, folder))
    return found


def unread_reason(error: BaseException, folder: Path) -> str:
    """Say in a sentence why a run cannot be read."""
    return f"{folder} cannot be read: {error.strerror or error}." if isinstance(error, OSError) else str(error)
