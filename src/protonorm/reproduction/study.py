"""A table or figure to reproduce, as its file states it. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from protonorm.config.bundled import bundled
from protonorm.core.own_code import load_file
from protonorm.core.registry import nearest
from protonorm.reproduction.cells import Cell, Column, Place, Printed
from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.protocols import Protocol
from protonorm.reproduction.study_errors import FORMS, problems

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.reproduction.findings import Findings
    from protonorm.reproduction.tables import Table


@dataclass(frozen=True)
class Study:
    """What a file of `experiments` states; each field is a name in that file, in capitals unless it is a function."""

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
    leads: str | None = None  # the row that should be best in every column …
    slack: Mapping[str, float] = field(default_factory=dict)  # … and how far it may be behind the best
    tables: Callable[[Findings], Sequence[Table]] | None = None  # other tables than accuracies
    draw: Callable[[Findings], Mapping[str, Figure]] | None = None  # figures by file name
    part: str = ""  # a sentence, if these are not all cells …
    ending: str = ""  # … and what the names of its figures end with then

    def settings(self, cell: Cell, profile: Profile, protocol: Protocol, seed: int) -> dict[str, Any]:
        """Say what is run for a cell."""
        return profile.cut(cell.settings) | {"validation": protocol.validation, "seed": seed}


def study_names() -> list[str]:
    """List the tables and figures, in the paper's order."""
    return list(bundled("experiments").NAMES)


def find_studies(words: Sequence[str]) -> list[Study]:
    """Find tables and figures by name, `all` of them, or in the user's own files."""
    known = study_names()
    wanted = list(dict.fromkeys(one for word in words for one in (known if word == "all" else [word])))
    own = _own_files([word for word in wanted if word.endswith(".py")], known)
    chosen: list[Study] = []
    for word in wanted:
        if word.endswith(".py"):
            chosen += [read_study(load_file(own[word]), Path(word).stem)] if word in own else []
        elif word in known:
            chosen.append(read_study(import_module(f"{bundled('experiments').__name__}.{word}"), word))
        else:
            raise ValueError(f"Unknown table or figure {word!r}; {nearest(word, [*known, 'all'])}")
    if not chosen:
        raise ValueError(f"There is no table or figure to reproduce; known: {', '.join([*known, 'all'])}.")
    return chosen


def read_study(module: ModuleType, name: str) -> Study:
    """Take from a file the names that a study has, or say what is wrong with them."""
    held = {key: getattr(module, key) for key in FORMS if hasattr(module, key)}
    if "TITLE" not in held or not {"COLUMNS", "tables", "draw"} & set(held):
        raise ValueError(
            f"{module.__file__} is not a table or figure: expected TITLE, and COLUMNS with CELLS, tables() or draw()."
        )
    if wrong := next(problems(held), None):
        raise ValueError(f"{module.__file__} is refused: {wrong}")
    return Study(name=name, **{key.lower(): value for key, value in held.items()})


def _own_files(words: Sequence[str], known: Sequence[str]) -> dict[str, Path]:
    """List the user's own files, each once; names that would overwrite each other's output are refused."""
    own: dict[str, Path] = {}
    for word in words:
        path = Path(word)
        if path.stem in known:
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
