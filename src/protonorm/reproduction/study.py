"""Table or figure to reproduce, as its file states it: lookup, validation, and selection of cells. No torch."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from protonorm.config.kinds import bundled
from protonorm.core.own_code import load_file
from protonorm.core.registry import nearest
from protonorm.reproduction.cells import Cell, Column, Place, Printed
from protonorm.reproduction.profiles import PROFILES, Profile, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.reproduction.findings import Findings
    from protonorm.reproduction.tables import Table

EXAMPLES = 8  # maximum names in an error message
LONGEST = 60  # maximum characters of a text in a file name


@dataclass(frozen=True)
class Study:
    """Contents of a file of `experiments`; each field is a name in that file, in capitals unless it is a function."""

    name: str
    title: str  # with the paper's number of the table or figure
    cells: Sequence[Cell] = ()
    paper: Mapping[Place, Printed] = field(default_factory=dict)
    columns: Sequence[Column] = ()  # of a table of accuracies
    rows: Sequence[str] = ()
    beside: Sequence[str] = ()  # rows that the paper does not have, for the second table
    corner: str = "Algorithm"
    best: str = "column"  # axis along which the best number is bold: column or row
    # requirements of --check, in percentage points, by profile; profiles without an entry are not checked
    tolerance: Mapping[str, float] = field(default_factory=dict)  # largest distance from the printed number
    leads: str | None = None  # the row that should be best in every column …
    slack: Mapping[str, float] = field(default_factory=dict)  # … and how far it may be behind the best
    tables: Callable[[Findings], Sequence[Table]] | None = None  # other tables than accuracies
    draw: Callable[[Findings], Mapping[str, Figure]] | None = None  # figures by file name
    part: str = ""  # note, if these are not all cells …
    ending: str = ""  # … and the suffix of its figures' names

    def settings(self, cell: Cell, profile: Profile, protocol: Protocol, seed: int) -> dict[str, Any]:
        """Return the settings that are run for a cell."""
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
    """Build a study from a module; raise a ValueError if its contents are invalid."""
    held = {key: getattr(module, key) for key in FORMS if hasattr(module, key)}
    if "TITLE" not in held or not {"COLUMNS", "tables", "draw"} & set(held):
        raise ValueError(
            f"{module.__file__} is not a table or figure: expected TITLE, and COLUMNS with CELLS, tables() or draw()."
        )
    if wrong := next(problems(held), None):
        raise ValueError(f"{module.__file__} is refused: {wrong}")
    return Study(name=name, **{key.lower(): value for key, value in held.items()})


def _own_files(words: Sequence[str], known: Sequence[str]) -> dict[str, Path]:
    """List the user's own files, each once; raise a ValueError for names whose outputs would overwrite each other."""
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


def problems(held: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a file's contents: wrong types first, then contradictions."""
    wrong = [f"{name} must be {what}." for name, (fits, what) in FORMS.items() if name in held and not fits(held[name])]
    yield from wrong or _contradictions(held)


def _contradictions(held: Mapping[str, Any]) -> Iterator[str]:
    cells = held.get("CELLS", ())
    for (row, column), count in Counter(cell.place for cell in cells).items():
        if count > 1:
            yield f"CELLS holds the cell {row!r}, {column!r} {count} times; expected once."
    for cell in cells:
        for name in ("seed", "validation"):
            if name in cell.settings:
                option = "--seeds" if name == "seed" else "--protocol"
                yield f"The cell {cell.row!r}, {cell.column!r} has the setting {name}; leave it out: {option} gives it."
    rows = (*held.get("ROWS", ()), *held.get("BESIDE", ()))
    if "LEADS" in held and held["LEADS"] is not None and held["LEADS"] not in rows:
        yield f"LEADS is {held['LEADS']!r}, which is neither in ROWS nor in BESIDE."
    if "COLUMNS" in held:
        yield from _strays(cells, rows, held["COLUMNS"])


def _strays(cells: list[Cell], rows: tuple[str, ...], columns: tuple[Column, ...]) -> Iterator[str]:
    """Yield the cells that would be run and never shown."""
    places = [column.place for column in columns]
    if len(set(places)) < len(places):
        yield "COLUMNS holds a column twice."
    for row in dict.fromkeys(cell.row for cell in cells if cell.row not in rows):
        yield f"CELLS has the row {row!r}, which is neither in ROWS nor in BESIDE."
    for column in dict.fromkeys(cell.column for cell in cells if cell.column not in places):
        yield f"CELLS has the column {column!r}, which is not in COLUMNS; there are: {', '.join(map(repr, places))}."


def _is_text(value: Any) -> bool:
    """Return whether a value is a non-empty text that a file can hold: lone surrogates are not."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (tuple, list)) and all(map(fits, value))


_are_texts = _all(_is_text)


def _is_cell(value: Any) -> bool:
    return isinstance(value, Cell) and _are_texts(value.place) and isinstance(value.settings, dict)


def _is_column(value: Any) -> bool:
    return isinstance(value, Column) and _is_text(value.name) and (value.group == "" or _is_text(value.group))


def _are_numbers(value: Any) -> bool:
    """Return whether a value maps profiles to non-negative numbers."""
    return isinstance(value, dict) and all(
        name in PROFILES and isinstance(number, (int, float)) and not isinstance(number, bool) and number >= 0
        for name, number in value.items()
    )


def _is_paper(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(place, tuple) and len(place) == 2 and _are_texts(place) and isinstance(number, Printed)
        for place, number in value.items()
    )


NUMBERS = f"a dict of numbers from 0 on by profile ({', '.join(PROFILES)}), such as {{'cpu': 3.0}}"
FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "TITLE": (_is_text, "a text"),
    "CELLS": (
        _all(_is_cell),
        "a list of protonorm.reproduction.cells.Cell, each with a text as row and as column and a dict of settings",
    ),
    "PAPER": (_is_paper, "made by protonorm.reproduction.cells.printed()"),
    "COLUMNS": (_all(_is_column), "a tuple of protonorm.reproduction.cells.Column"),
    "ROWS": (_are_texts, "a tuple of texts"),
    "BESIDE": (_are_texts, "a tuple of texts"),
    "CORNER": (_is_text, "a text"),
    "BEST": (lambda value: value in ("column", "row"), "'column' or 'row'"),
    "TOLERANCE": (_are_numbers, NUMBERS),
    "LEADS": (lambda value: value is None or _is_text(value), "a row"),
    "SLACK": (_are_numbers, NUMBERS),
    "tables": (callable, "a function"),
    "draw": (callable, "a function"),
}


def select_cells(studies: Sequence[Study], only: Sequence[str]) -> list[Study]:
    """Select the cells that match every text; a study that loses cells gets a name of its own."""
    if any(not text.strip() for text in only):
        raise ValueError("--only with an empty text is refused: expected a row or column, such as CIFAR-100.")
    known = {name.lower() for study in studies for cell in study.cells for name in _names(cell)}
    return [_select(study, only, known) for study in studies] if only else list(studies)


def _select(study: Study, only: Sequence[str], known: set[str]) -> Study:
    texts = [text.strip().lower() for text in only]
    whole = {name.lower() for cell in study.cells for name in cell.place}
    cells = [cell for cell in study.cells if all(_matches(cell, text, whole, known) for text in texts)]
    if not cells:
        raise ValueError(_refusal(study, only))
    if len(cells) == len(study.cells):
        return study
    ending = "-only-" + "-and-".join(map(_slug, only))
    part = f"A part: {len(cells)} of {len(study.cells)} cells, those with {' and '.join(map(repr, only))}."
    return replace(
        study, name=study.name + ending, title=f"{study.title} (a part)", cells=cells, part=part, ending=ending
    )


def _names(cell: Cell) -> list[str]:
    """List the names of a cell: row, column, and their parts."""
    return [cell.row, cell.column, *re.split(", |: ", cell.row), *re.split(", |: ", cell.column)]


def _matches(cell: Cell, text: str, whole: set[str], known: set[str]) -> bool:
    """Compare whole names if the text is one, so that CIFAR-10 does not match CIFAR-100; otherwise search inside them.

    A whole row or column takes precedence over a part of others: Duet does not match "Duet, alone", and alone matches
    every row with it.
    """
    if text in whole:
        return text in map(str.lower, cell.place)
    if text in known:
        return text in map(str.lower, _names(cell))
    return text in f"{cell.row} {cell.column}".lower()


def _refusal(study: Study, only: Sequence[str]) -> str:
    texts = " ".join(f"--only {text!r}" for text in only)
    every = ", because one cell must match all of them" if len(only) > 1 else ""
    if not study.cells:
        return f"{texts} is refused: {study.name} has no cells to choose from."
    rows, columns = _some(cell.row for cell in study.cells), _some(cell.column for cell in study.cells)
    return f"{texts} is refused: no cell of {study.name} matches{every}. Its rows: {rows}. Its columns: {columns}."


def _some(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return "; ".join(found[:EXAMPLES]) + (f"; and {len(found) - EXAMPLES} more" if len(found) > EXAMPLES else "")


def _slug(text: str) -> str:
    """Convert a text to part of a file name; if characters are lost, a few hash digits keep it unique."""
    plain = "-".join(text.lower().split())
    slug = "-".join(re.findall(r"[a-z0-9.]+", plain))[:LONGEST]
    digits = hashlib.sha256(plain.encode(errors="backslashreplace")).hexdigest()[:6]
    return slug if slug == plain else f"{slug}-{digits}".strip("-")
