"""Some cells of a table or figure instead of all: what --only means. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from protonorm.reproduction.cells import Cell
from protonorm.reproduction.study import Study

SHOWN = 8  # names that a refusal gives as examples
LONGEST = 60  # characters of a text in a file's name


def select_cells(studies: Sequence[Study], only: Sequence[str]) -> list[Study]:
    """Keep the cells that match every text; a study that loses some is a part, with a name of its own."""
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
    """List what a cell can be called by: row, column, and the parts that these are put together from."""
    return [cell.row, cell.column, *re.split(", |: ", cell.row), *re.split(", |: ", cell.column)]


def _matches(cell: Cell, text: str, whole: set[str], known: set[str]) -> bool:
    """Compare whole names if the text is one, so that CIFAR-10 is not CIFAR-100; otherwise look for it inside them.

    A whole row or column comes before a part of others: Duet is not "Duet, alone", and alone is every row with it.
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
    return "; ".join(found[:SHOWN]) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _slug(text: str) -> str:
    """Turn a text into part of a file name; one that loses signs gets a few digits, to tell it from others."""
    plain = "-".join(text.lower().split())
    slug = "-".join(re.findall(r"[a-z0-9.]+", plain))[:LONGEST]
    digits = hashlib.sha256(plain.encode(errors="backslashreplace")).hexdigest()[:6]
    return slug if slug == plain else f"{slug}-{digits}".strip("-")
