"""A table or figure to reproduce, as its file says it. Nothing here needs torch."""

from __future__ import annotations

import sys
import traceback
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
from protonorm.reproduction.form import complaints
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
    part: str = ""  # a sentence, if these are not all cells …
    ending: str = ""  # … and what its figures' names end with then

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
    if wrong := next(complaints(held), None):
        raise ValueError(f"{module.__file__} is refused: {wrong}")
    return Study(name=name, **{key.lower(): value for key, value in held.items()})


def names() -> list[str]:
    """Name the tables and figures, in the paper's order."""
    return list(companion("experiments").NAMES)


def find_studies(words: Sequence[str]) -> list[Study]:
    """Find tables and figures by name, `all` of them, or in files of the user's own."""
    chosen: list[Study] = []
    wanted = [one for given in words for one in (names() if given == "all" else [given])]
    own = _own_files([word for word in wanted if word.endswith(".py")])
    for word in dict.fromkeys(wanted):
        if word.endswith(".py"):
            chosen += [read_study(_load(own[word]), Path(word).stem)] if word in own else []
        elif word in names():
            chosen.append(read_study(import_module(f"{companion('experiments').__name__}.{word}"), word))
        else:
            raise ValueError(f"Unknown table or figure {word!r}; {nearest(word, [*names(), 'all'])}")
    if not chosen:
        raise ValueError(f"There is no table or figure to reproduce; known: {', '.join([*names(), 'all'])}.")
    return chosen


def _own_files(words: Sequence[str]) -> dict[str, Path]:
    """List the user's own files, each once; names that would be written over each other are refused."""
    own: dict[str, Path] = {}
    for word in words:
        path = Path(word)
        if path.stem in names():
            raise ValueError(f"{word} is refused: {path.stem!r} is a table or figure of the paper. Rename the file.")
        twins = [other for other, held in own.items() if held.stem.lower() == path.stem.lower()]
        if any(own[twin].resolve() == path.resolve() for twin in twins):
            continue  # the same file, written in two ways
        if twins:
            raise ValueError(
                f"{twins[0]} and {word} are refused together: what is written is named after the file, and both are "
                f"named {path.stem!r}. Rename one of them, or give them in two commands with two folders (--to)."
            )
        own[word] = path
    return own


def _load(path: Path) -> ModuleType:
    """Import a user's own file; what goes wrong in it is said with its line."""
    if not path.is_file():
        raise ValueError(f"There is no Python file {path}.")
    try:
        return load_file(path)
    except (Exception, SystemExit) as error:
        sys.modules.pop(f"protonorm_own_{path.stem}", None)  # it is not whole
        raise ValueError(f"{path}{_line(path, error)}: {type(error).__name__}: {_said(error)}") from error


def _line(path: Path, error: BaseException) -> str:
    file = str(path.resolve())
    if isinstance(error, SyntaxError) and error.filename == file:
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", line {lines[-1]}" if lines else ""


def _said(error: BaseException) -> str:
    return (error.msg if isinstance(error, SyntaxError) else str(error)) or "no reason was given"
