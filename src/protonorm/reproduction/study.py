"""A table or figure to reproduce, as its file says it. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from protonorm.companion import companion
from protonorm.components import load_file
from protonorm.registry import nearest
from protonorm.reproduction.cells import Cell, Column, Place, Printed
from protonorm.reproduction.profiles import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.reproduction.findings import Findings
    from protonorm.reproduction.table import Table

KNOWN = (
    *("TITLE", "CELLS", "PAPER", "COLUMNS", "ROWS", "BESIDE", "CORNER", "BEST"),
    *("TOLERANCE", "LEADS", "SLACK", "tables", "draw"),
)


@dataclass(frozen=True)
class Study:
    """What a file of `experiments` says; each field is a name in that file, in capitals unless it is a function."""

    name: str
    title: str  # with the paper's number of the table or figure
    cells: Sequence[Cell] = ()
    paper: Mapping[Place, Printed] = field(default_factory=dict)
    columns: Sequence[Column] = ()  # of a table of accuracies
    rows: Sequence[str] = ()
    beside: Sequence[str] = ()  # rows that the paper does not have, for the second table
    corner: str = "Algorithm"
    best: str = "column"  # along which the best number is bold: column or row
    # what --check demands, in points of per cent, by profile; a profile that is not named is not checked
    tolerance: Mapping[str, float] = field(default_factory=dict)  # largest distance from the printed number
    leads: str | None = None  # the row that the paper finds best in every column …
    slack: Mapping[str, float] = field(default_factory=dict)  # … and how far it may be behind the best
    tables: Callable[[Findings], Sequence[Table]] | None = None  # other tables than accuracies
    draw: Callable[[Findings], Mapping[str, Figure]] | None = None  # figures by file name

    def settings(self, cell: Cell, profile: Profile, seed: int) -> dict[str, Any]:
        """Say what is run for a cell."""
        return profile.cut(cell.settings) | {"seed": seed}


def read_study(module: ModuleType, name: str) -> Study:
    """Take from a file the names that a study has."""
    held = {key: getattr(module, key) for key in KNOWN if hasattr(module, key)}
    if "TITLE" not in held or not {"COLUMNS", "tables", "draw"} & set(held):
        raise ValueError(
            f"{module.__file__} is not a table or figure: expected TITLE, and COLUMNS with CELLS, tables() or draw()."
        )
    cells = held.get("CELLS", ())
    if not all(isinstance(cell, Cell) for cell in cells):
        raise ValueError(f"{module.__file__}: CELLS must hold objects of protonorm.reproduction.cells.Cell.")
    return Study(name=name, **{key.lower(): value for key, value in held.items()})


def names() -> list[str]:
    """Name the tables and figures, in the paper's order."""
    return list(companion("experiments").NAMES)


def find_studies(words: Sequence[str]) -> list[Study]:
    """Find tables and figures by name, `all` of them, or in files of the user's own."""
    chosen: list[Study] = []
    wanted = [one for given in words for one in (names() if given == "all" else [given])]
    for word in dict.fromkeys(wanted):
        if word.endswith(".py"):
            chosen.append(read_study(load_file(Path(word)), Path(word).stem))
        elif word in names():
            chosen.append(read_study(import_module(f"{companion('experiments').__name__}.{word}"), word))
        else:
            raise ValueError(f"Unknown table or figure {word!r}; {nearest(word, [*names(), 'all'])}")
    if not chosen:
        raise ValueError(f"There is no table or figure to reproduce; known: {', '.join([*names(), 'all'])}.")
    return chosen
