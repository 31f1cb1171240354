"""Runs of several methods side by side: the rows of a table. Nothing here needs torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from protonorm.analysis.labels import data_settings, labels
from protonorm.analysis.plain_text import csv_lines
from protonorm.runs.reader import Run, Summary

COLUMNS: dict[str, tuple[str, Callable[[Summary], float]]] = {  # name: (title, its number in a run's summary)
    "best": ("best", lambda found: found.best.pooled),
    "last": ("last", lambda found: found.last.pooled),
    "mean": ("clients", lambda found: found.best.mean),
    "worst": ("worst 10 %", lambda found: found.best.worst),
    "own_best": ("own best", lambda found: found.own_best),
}

RULES = {  # what the prediction rules mean
    "global": "nearest global prototype",
    "local": "nearest local prototype",
    "logits": "the model's own logits",
    "received": "logits of the model as received",
}

MAJORITY = "-"  # in place of a rule, in the rows that tell of the majority class


@dataclass(frozen=True)
class Unread:
    """A run of a comparison whose record is damaged."""

    headline: str  # the rule that its method is judged by
    reason: str


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds, as fractions of one."""

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
    def is_majority(self) -> bool:
        """Tell whether the row is that of the majority class, not of a method."""
        return self.rule == MAJORITY

    def plain(self) -> dict[str, Any]:
        """Give the row as plain data."""
        return asdict(self)


def rows(runs: Mapping[str, Sequence[Run | Unread]]) -> list[Row]:
    """Make a row for each method and rule, headline rules first, then a `majority` row for each partition of data.

    A method of which no run could be read has one row, whose note says why.
    """
    table = [row for method, found in runs.items() for row in _method_rows(method, found)]
    return [*table, *majority_rows([run for found in whole(runs).values() for run in found])]


def whole(runs: Mapping[str, Sequence[Run | Unread]]) -> dict[str, list[Run]]:
    """Keep the runs that could be read, and the methods that have any."""
    read = {method: [run for run in found if isinstance(run, Run)] for method, found in runs.items()}
    return {method: found for method, found in read.items() if found}


def best(table: Sequence[Row], column: str) -> Row | None:
    """Find the method that is best in a column under its headline rule."""
    known = [row for row in table if row.headline and not row.is_majority and row.cells.get(column)]
    return max(known, key=lambda row: cell.mean if (cell := row.cells[column]) else -math.inf, default=None)


def majority_rows(runs: Sequence[Run]) -> list[Row]:
    """Say what guessing each client's most frequent class gives: a row for each partition, with a label if several."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(data_settings(run), sort_keys=True), []).append(run)
    names = labels([data_settings(alike[0]) for alike in found.values()])
    return [_majority_row(alike, name) for alike, name in zip(found.values(), names, strict=True)]


def csv_text(table: Sequence[Row]) -> str:
    """Write the rows as CSV, numbers as fractions of one."""
    lines: list[list[Any]] = [
        ["method", "rule", "headline", *(f"{name}{end}" for name in COLUMNS for end in ("", "_std")), "note"]
    ]
    for row in table:
        cells = [row.cells.get(name) for name in COLUMNS]
        numbers = [number for cell in cells for number in ((cell.mean, cell.std) if cell else (None, None))]
        lines.append([row.method, row.rule, row.headline, *numbers, row.note])
    return csv_lines(lines)


def _rules(run: Run) -> list[str]:
    headline = run.info.headline
    return [headline, *(rule for rule in run.info.rules if rule != headline)]


def _method_rows(method: str, found: Sequence[Run | Unread]) -> list[Row]:
    runs = [run for run in found if isinstance(run, Run)]
    unread = [one for one in found if isinstance(one, Unread)]
    rules = _rules(runs[0]) if runs else [unread[0].headline]
    return [_row(method, rule, rule == rules[0], runs, unread) for rule in rules]


def _row(method: str, rule: str, headline: bool, runs: Sequence[Run], unread: Sequence[Unread]) -> Row:
    known = [found for run in runs if (found := run.summary(rule))]
    cells = {name: _cell([number(found) for found in known]) for name, (_, number) in COLUMNS.items()}
    rounds = sorted({run.failure.round for run in runs if run.failure})
    stopped = [f"stopped in round {' and '.join(map(str, rounds))}"] if rounds else []
    seeds = len(runs) + len(unread)
    fewer = [f"{len(known)} of {seeds} seeds"] if 0 < len(known) < seeds else []
    damaged = [f"not read: {one.reason.rstrip('.')}" for one in unread]
    return Row(method, rule, headline, cells, ", ".join([*stopped, *fewer, *damaged]))


def _majority_row(runs: Sequence[Run], name: str) -> Row:
    """Average the majority line over the seeds of one partition; equal populations count once."""
    seen = {tuple(part.tobytes() for part in run.population): run.majority for run in runs}
    levels = [level for level in seen.values() if level]
    pooled, mean, worst = ([getattr(level, part) for level in levels] for part in ("pooled", "mean", "worst"))
    columns = {"best": pooled, "last": pooled, "mean": mean, "worst": worst, "own_best": mean}
    cells = {column: _cell(values) for column, values in columns.items()}
    return Row(f"majority ({name})" if name else "majority", MAJORITY, True, cells)


def _cell(values: Sequence[float]) -> Cell | None:
    return Cell(fmean(values), stdev(values) if len(values) > 1 else None) if values else None
