"""What is wrong with the file of a table or figure, in sentences. Nothing here needs torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from protonorm.reproduction.cells import Cell, Column, Printed
from protonorm.reproduction.profiles import PROFILES

Held = Mapping[str, Any]  # what a file holds, by name


def problems(held: Held) -> Iterator[str]:
    """Say what is wrong with what a file holds: wrong types first, then things that contradict each other."""
    wrong = [f"{name} must be {what}." for name, (fits, what) in FORMS.items() if name in held and not fits(held[name])]
    yield from wrong or _contradictions(held)


def _contradictions(held: Held) -> Iterator[str]:
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
    """Say which cells would be run and never be shown."""
    places = [column.place for column in columns]
    if len(set(places)) < len(places):
        yield "COLUMNS holds a column twice."
    for row in dict.fromkeys(cell.row for cell in cells if cell.row not in rows):
        yield f"CELLS has the row {row!r}, which is neither in ROWS nor in BESIDE."
    for column in dict.fromkeys(cell.column for cell in cells if cell.column not in places):
        yield f"CELLS has the column {column!r}, which is not in COLUMNS; there are: {', '.join(map(repr, places))}."


def _is_text(value: Any) -> bool:
    """Tell whether it is a text that is not empty and that a file can hold: half a surrogate pair is none."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, (tuple, list)) and all(map(fits, value))


def _are_texts(value: Any) -> bool:
    return _all(value, _is_text)


def _is_cell(value: Any) -> bool:
    return isinstance(value, Cell) and _are_texts(value.place) and isinstance(value.settings, dict)


def _is_column(value: Any) -> bool:
    return isinstance(value, Column) and _is_text(value.name) and (value.group == "" or _is_text(value.group))


def _are_numbers(value: Any) -> bool:
    """Tell whether it gives some profiles a number that is not negative."""
    return isinstance(value, dict) and all(
        name in PROFILES and isinstance(one, (int, float)) and not isinstance(one, bool) and one >= 0
        for name, one in value.items()
    )


def _is_paper(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(place, tuple) and len(place) == 2 and _are_texts(place) and isinstance(one, Printed)
        for place, one in value.items()
    )


NUMBERS = f"a dict of numbers from 0 on by profile ({', '.join(PROFILES)}), such as {{'cpu': 3.0}}"
FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "TITLE": (_is_text, "a text"),
    "CELLS": (
        lambda value: _all(value, _is_cell),
        "a list of protonorm.reproduction.cells.Cell, each with a text as row and as column and a dict of settings",
    ),
    "PAPER": (_is_paper, "made by protonorm.reproduction.cells.printed()"),
    "COLUMNS": (lambda value: _all(value, _is_column), "a tuple of protonorm.reproduction.cells.Column"),
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
