"""Runs of several methods side by side: the rows of a table. Nothing here needs torch."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from protonorm.deals import deal, labels
from protonorm.history import Run

COLUMNS = {  # name: (title, where it is in a summary)
    "best": ("best", ("best", "pooled")),
    "last": ("last", ("last", "pooled")),
    "mean": ("clients", ("best", "mean")),
    "worst": ("worst 10 %", ("best", "worst")),
    "own_best": ("own best", ("own_best",)),
}

GUESS = "-"  # the rule of a row that tells of the majority class


@dataclass(frozen=True)
class Cell:
    """Mean and spread over seeds, in parts of one."""

    mean: float
    std: float | None  # None for a single seed

    def __str__(self) -> str:
        """Write it in per cent."""
        spread = "" if self.std is None else f" ± {100 * self.std:.2f}"
        return f"{100 * self.mean:.2f}{spread}"


@dataclass(frozen=True)
class Row:
    """A method under one prediction rule."""

    method: str
    rule: str
    headline: bool
    cells: Mapping[str, Cell | None]  # by column
    note: str = ""

    @property
    def guess(self) -> bool:
        """Tell whether the row is no method but the majority class."""
        return self.rule == GUESS

    def plain(self) -> dict[str, Any]:
        """Give the row to machines."""
        return asdict(self)


def rows(runs: Mapping[str, Sequence[Run]]) -> list[Row]:
    """Make a row for each method and rule, the headline first, then `majority` for each way of dealing out."""
    table = [_row(method, rule, found) for method, found in runs.items() for rule in _rules(found[0])]
    return [*table, *guesses([run for found in runs.values() for run in found])]


def best(table: Sequence[Row], column: str) -> Row | None:
    """Find the headline row that is best in a column."""
    known = [row for row in table if row.headline and not row.guess and row.cells.get(column)]
    return max(known, key=lambda row: cell.mean if (cell := row.cells[column]) else -math.inf, default=None)


def _rules(run: Run) -> list[str]:
    headline = run.about["headline"]
    return [headline, *(rule for rule in run.about["rules"] if rule != headline)]


def _row(method: str, rule: str, runs: Sequence[Run]) -> Row:
    summaries = [run.summary(rule) for run in runs]
    cells = {name: _cell([_dig(one, where) for one in summaries if one]) for name, (_, where) in COLUMNS.items()}
    failed = [run.failure for run in runs if run.failure]
    note = f"diverged in round {failed[0]['round']}" if failed else ""
    return Row(method, rule, rule == runs[0].about["headline"], cells, note)


def guesses(runs: Sequence[Run]) -> list[Row]:
    """Say what guessing each client's most frequent class gives: a row for each way of dealing, named if several."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(deal(run), sort_keys=True), []).append(run)
    names = labels([deal(dealt[0]) for dealt in found.values()])
    return [_majority(dealt, name) for dealt, name in zip(found.values(), names, strict=True)]


def _majority(runs: Sequence[Run], name: str) -> Row:
    """Average over seeds of one way of dealing; equal partitions count once."""
    seen = {str(run.about["counts"]): run.about["majority"] for run in runs}
    values = [one for one in seen.values() if one]
    where = {"best": "pooled", "last": "pooled", "mean": "mean", "worst": "worst", "own_best": "mean"}
    cells = {column: _cell([one[key] for one in values]) for column, key in where.items()}
    return Row(f"majority ({name})" if name else "majority", GUESS, True, cells)


def _dig(value: Any, where: Sequence[str]) -> float:
    for name in where:
        value = value[name]
    return float(value)


def _cell(values: Sequence[float]) -> Cell | None:
    return Cell(fmean(values), stdev(values) if len(values) > 1 else None) if values else None


def csv_text(table: Sequence[Row]) -> str:
    """Write the rows as CSV, in parts of one, for machines."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["method", "rule", "headline", *(f"{name}{end}" for name in COLUMNS for end in ("", "_std")), "note"]
    )
    for row in table:
        cells = [row.cells.get(name) for name in COLUMNS]
        numbers = [number for cell in cells for number in ((cell.mean, cell.std) if cell else (None, None))]
        writer.writerow([row.method, row.rule, row.headline, *numbers, row.note])
    return text.getvalue()
