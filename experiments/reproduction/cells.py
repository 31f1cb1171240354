"""Table or figure to reproduce, as its file states it: cells, printed numbers, lookup, validation and selection.

Does not import torch.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from protonorm.config.kinds import bundled
from protonorm.core.own_code import load_file
from protonorm.core.registry import nearest

from .profiles import PROFILES, Profile, Protocol, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .findings import Findings

Place = tuple[str, str]  # row, column

NUMBER = re.compile(r"(\d+\.\d+)(?: ± (\d+\.\d+))?")
EXAMPLES = 8  # maximum names in an error message
LONGEST = 60  # maximum characters of a text in a file name


@dataclass(frozen=True)
class Cell:
    """Experiment of a table or figure, as in the paper; a profile may reduce it, and seeds repeat it."""

    row: str
    column: str
    settings: Settings

    @property
    def place(self) -> Place:
        """Row and column."""
        return self.row, self.column


class Printed(NamedTuple):
    """Number as printed, in per cent."""

    mean: float | None  # None for '-': it did not converge
    std: float | None = None  # over seeds, where it is printed

    def __str__(self) -> str:
        """Format it as printed."""
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return "-" if self.mean is None else f"{self.mean:.2f}{spread}"


class Column(NamedTuple):
    """Column of a table, below the heading that it shares with its neighbours."""

    name: str
    group: str = ""

    @property
    def place(self) -> str:
        """Name with its heading: columns below other headings may have the same name."""
        return f"{self.group}: {self.name}" if self.group else self.name


class TableEntry(NamedTuple):
    """Entry of a table."""

    text: str
    below: str = ""  # second line: the printed number, and the difference
    bold: bool = False
    best: str = ""  # line between: the best test round, which is optimistic
    tests: Mapping[str, str] = {}  # further lines: the common test, and clients that never train, by name

    @property
    def lines(self) -> list[str]:
        """Lines below the number."""
        tests = [f"{name} {number}" for name, number in self.tests.items()]
        return list(filter(None, [*tests, self.best and f"best* {self.best}", self.below]))


class Table(NamedTuple):
    """Table: headings, columns, and rows of entries."""

    title: str
    corner: str  # heading of the rows
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[TableEntry]]]
    groups: Sequence[str] = ()  # heading above each column; equal neighbours share one
    explanation: str = ""  # what the numbers are

    @property
    def titled_columns(self) -> list[tuple[str, str]]:
        """Columns, each with its shared heading, which may be empty."""
        return list(zip(self.groups or [""] * len(self.columns), self.columns, strict=True))


def printed(columns: Sequence[Column], text: str) -> dict[Place, Printed]:
    """Parse lines `row | number | number | …`, one number for each column."""
    numbers: dict[Place, Printed] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        row, *parts = (part.strip() for part in line.split("|"))
        if len(parts) != len(columns):
            raise ValueError(f"The line {line!r} has {len(parts)} numbers for {len(columns)} columns.")
        for column, part in zip(columns, parts, strict=True):
            match = NUMBER.fullmatch(part)
            if not match and part != "-":
                raise ValueError(f"{part!r} in the line {line!r} is not a number such as 47.41 ± 0.40, nor '-'.")
            mean_and_std = match.groups() if match else (None,)
            numbers[row, column.place] = Printed(*(float(text) if text else None for text in mean_and_std))
    return numbers


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
    partitions: bool = False  # whether seeds also draw the partition
    tables: Callable[[Findings], Sequence[Table]] | None = None  # other tables than accuracies
    draw: Callable[[Findings], Mapping[str, Figure]] | None = None  # figures by file name
    part: str = ""  # note, if these are not all cells …
    ending: str = ""  # … and the suffix of its figures' names

    def settings(self, cell: Cell, profile: Profile, protocol: Protocol, seed: int) -> dict[str, Any]:
        """Return the settings that are run for a cell."""
        cut = profile.cut(cell.settings)
        drawn = {"partition": {**cut["partition"], "seed": seed}} if self.partitions else {}
        return cut | drawn | {"validation": protocol.validation, "seed": seed}


def study_names() -> list[str]:
    """List the tables and figures, in the paper's order."""
    return list(bundled("experiments").NAMES)


def find_studies(words: Sequence[str]) -> list[Study]:
    """Find tables and figures by name, `all` of them, or in the user's own files.

    Raises a ValueError for files whose outputs would overwrite each other or those of the paper.
    """
    existing, requested, stems = study_names(), dict[str | Path, str](), dict[str, str]()
    for name in (name for word in words for name in (existing if word == "all" else [word])):
        requested.setdefault(Path(name).resolve() if name.endswith(".py") else name, name)
    if not requested:
        raise ValueError(f"There is no table or figure to reproduce; known: {', '.join([*existing, 'all'])}.")
    for word in (word for word in requested.values() if word.endswith(".py")):
        stem = Path(word).stem
        if stem in existing:
            raise ValueError(f"Rename {word}: {stem!r} is a table or figure of the paper.")
        if (twin := stems.setdefault(stem.lower(), word)) != word:
            raise ValueError(
                f"What is written is named after its file, and {twin} and {word} both are named {stem!r}; rename one "
                "of them, or give them in two commands with two folders (--to)."
            )
    return [_find_study(word, existing) for word in requested.values()]


def _find_study(word: str, existing: Sequence[str]) -> Study:
    if word.endswith(".py"):
        return read_study(load_file(Path(word)), Path(word).stem)
    if word not in existing:
        raise ValueError(f"Unknown table or figure {word!r}; {nearest(word, [*existing, 'all'])}")
    return read_study(import_module(f"{bundled('experiments').__name__}.{word}"), word)


def read_study(module: ModuleType, name: str) -> Study:
    """Build a study from a module; raise a ValueError if its contents are invalid."""
    constants = {key: getattr(module, key) for key in FORMS if hasattr(module, key)}
    if "TITLE" not in constants or not {"COLUMNS", "tables", "draw"} & set(constants):
        raise ValueError(
            f"{module.__file__} is not a table or figure: expected TITLE, and COLUMNS with CELLS, tables() or draw()."
        )
    if problem := next(problems(constants), None):
        raise ValueError(f"{module.__file__} cannot be used: {problem}")
    return Study(name=name, **{key.lower(): value for key, value in constants.items()})


def problems(constants: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a file's contents: wrong types first, then contradictions."""
    types = [
        f"{name} must be {form}."
        for name, (fits, form) in FORMS.items()
        if name in constants and not fits(constants[name])
    ]
    yield from types or _contradictions(constants)


def _contradictions(constants: Mapping[str, Any]) -> Iterator[str]:
    cells, rows = constants.get("CELLS", ()), (*constants.get("ROWS", ()), *constants.get("BESIDE", ()))
    for (row, column), count in Counter(cell.place for cell in cells).items():
        if count > 1:
            yield f"CELLS holds the cell {row!r}, {column!r} {count} times; expected once."
    for cell, (name, option) in product(cells, (("seed", "--seeds"), ("validation", "--protocol"))):
        if name in cell.settings:
            yield f"The cell {cell.row!r}, {cell.column!r} has the setting {name}; leave it out: {option} gives it."
    if (leads := constants.get("LEADS")) is not None and leads not in rows:
        yield f"LEADS is {leads!r}, which is neither in ROWS nor in BESIDE."
    for cell in cells if constants.get("PARTITIONS") else ():
        if not isinstance(cell.settings.get("partition"), Mapping):
            yield f"The cell {cell.row!r}, {cell.column!r} needs a partition with a name, whose seed PARTITIONS gives."
    if "COLUMNS" not in constants:
        return
    places = [column.place for column in constants["COLUMNS"]]
    if len(set(places)) < len(places):
        yield "COLUMNS holds a column twice."
    for cell in cells:  # these would be run and never shown
        if cell.row not in rows:
            yield f"CELLS has the row {cell.row!r}, which is neither in ROWS nor in BESIDE."
        if cell.column not in places:
            yield f"CELLS has the column {cell.column!r}, which is not in COLUMNS: {', '.join(map(repr, places))}."


def _is_text(value: Any) -> bool:
    """Return whether a value is a non-empty text that a file can hold: lone surrogates are not."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (tuple, list)) and all(map(fits, value))


def _dict(key: Callable[[Any], bool], fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(key, value)) and all(map(fits, value.values()))


def _is_cell(value: Any) -> bool:
    return isinstance(value, Cell) and all(map(_is_text, value.place)) and isinstance(value.settings, dict)


def _is_column(value: Any) -> bool:
    return isinstance(value, Column) and _is_text(value.name) and (value.group == "" or _is_text(value.group))


_are_texts = _all(_is_text)
_are_points = _dict(PROFILES.__contains__, lambda value: type(value) in (int, float) and value >= 0)
_is_paper = _dict(lambda place: _are_texts(place) and len(place) == 2, lambda value: isinstance(value, Printed))
NUMBERS = f"a dict of numbers from 0 on by profile ({', '.join(PROFILES)}), such as {{'cpu': 3.0}}"
WHERE = "protonorm.reproduction.cells"  # as users import it
FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "TITLE": (_is_text, "a text"),
    "CELLS": (_all(_is_cell), f"a list of {WHERE}.Cell, each with a text as row and as column and a dict of settings"),
    "PAPER": (_is_paper, f"made by {WHERE}.printed()"),
    "COLUMNS": (_all(_is_column), f"a tuple of {WHERE}.Column"),
    "ROWS": (_are_texts, "a tuple of texts"),
    "BESIDE": (_are_texts, "a tuple of texts"),
    "CORNER": (_is_text, "a text"),
    "BEST": (lambda value: value in ("column", "row"), "'column' or 'row'"),
    "TOLERANCE": (_are_points, NUMBERS),
    "LEADS": (lambda value: value is None or _is_text(value), "a row"),
    "SLACK": (_are_points, NUMBERS),
    "PARTITIONS": (lambda value: isinstance(value, bool), "true or false"),
    "tables": (callable, "a function"),
    "draw": (callable, "a function"),
}


def select_cells(studies: Sequence[Study], only: Sequence[str]) -> list[Study]:
    """Select the cells that match every text; a study that loses cells gets a name of its own."""
    if any(not text.strip() for text in only):
        raise ValueError("--only needs a row or column, such as CIFAR-100, and got an empty text.")
    existing = {name for study in studies for cell in study.cells for name in _names(cell)}
    return [_select(study, only, existing) for study in studies] if only else list(studies)


def _select(study: Study, only: Sequence[str], existing: set[str]) -> Study:
    """Select cells; a text that is a whole name matches only it, so that CIFAR-10 does not match CIFAR-100.

    A whole row or column takes precedence over a part of others: Duet does not match "Duet, alone", and alone matches
    every row with it. Other texts are searched inside the names.
    """
    cell_names = {name.lower() for cell in study.cells for name in cell.place}

    def matches(cell: Cell, text: str) -> bool:
        row, column = map(str.lower, cell.place)
        return text in (
            (row, column) if text in cell_names else _names(cell) if text in existing else f"{row} {column}"
        )

    texts = [text.strip().lower() for text in only]
    cells = [cell for cell in study.cells if all(matches(cell, text) for text in texts)]
    if len(cells) == len(study.cells) > 0:
        return study
    if not cells:
        nothing = f"{' '.join(f'--only {text!r}' for text in only)} selects nothing: "
        if not study.cells:
            raise ValueError(f"{nothing}{study.name} has no cells to choose from.")
        every = ", because one cell must match all of them" if len(only) > 1 else ""
        rows, columns = (
            few(names, EXAMPLES, "more") for names in zip(*(cell.place for cell in study.cells), strict=True)
        )
        raise ValueError(f"{nothing}no cell of {study.name} matches{every}. Its rows: {rows}. Its columns: {columns}.")
    ending = "-only-" + "-and-".join(map(_slug, only))
    part = f"A part: {len(cells)} of {len(study.cells)} cells, those with {' and '.join(map(repr, only))}."
    title = f"{study.title} (a part)"
    return replace(study, name=study.name + ending, title=title, cells=cells, part=part, ending=ending)


def _names(cell: Cell) -> list[str]:
    """List the names of a cell in lower case: row, column, and their parts."""
    return [part for name in map(str.lower, cell.place) for part in (name, *re.split(", |: ", name))]


def few(names: Iterable[str], limit: int, others: str) -> str:
    """Join names, each once, at most `most` of them and the number of the rest."""
    unique = list(dict.fromkeys(names))
    return "; ".join([*unique[:limit], f"and {len(unique) - limit} {others}"] if len(unique) > limit + 1 else unique)


def _slug(text: str) -> str:
    """Convert a text to part of a file name; if characters are lost, a few hash digits keep it unique."""
    plain = "-".join(text.lower().split())
    slug = "-".join(re.findall(r"[a-z0-9.]+", plain))[:LONGEST]
    digits = hashlib.sha256(plain.encode(errors="backslashreplace")).hexdigest()[:6]
    return slug if slug == plain else f"{slug}-{digits}".strip("-")
