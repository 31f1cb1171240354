"""Which runs a command means: by name, and by filters on their settings. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protonorm.cli.console import complain

if TYPE_CHECKING:
    from protonorm.runs.run import Run


class Wanted(NamedTuple):
    """What the words of a command ask for."""

    names: list[str]  # of runs
    filters: list[str]  # key=value


def sort_words(words: Sequence[str], root: Path) -> Wanted:
    """Tell names of runs from filters; a folder whose name has an equals sign is a name."""
    from protonorm.runs.layout import INFO

    names = [
        word for word in words if "=" not in word or any((place / INFO).exists() for place in (Path(word), root / word))
    ]
    return Wanted(names, [word for word in words if word not in names])


def wanted_folders(wanted: Wanted, root: Path) -> list[Path]:
    """Find the folders of the runs that are named, each once; all runs if none is."""
    from protonorm.runs.layout import find_run, find_runs

    found = [find_run(root, name) for name in wanted.names] if wanted.names else find_runs(root)
    return list({folder.resolve(): folder for folder in found}.values())


def wanted_runs(wanted: Wanted, root: Path) -> list[Run]:
    """Read the runs that are named, or all, and keep those that the filters let through; damaged ones are told of."""
    from protonorm.analysis.reading import read_some
    from protonorm.analysis.selecting import matching, read_filters

    filters = read_filters(wanted.filters)
    return matching(read_some(wanted_folders(wanted, root), complain), filters)
