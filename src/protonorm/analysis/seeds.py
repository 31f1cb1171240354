"""Every run of a comparison by itself: a line for each method, rule and seed, as CSV. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protonorm.analysis.comparison import reported, rules_in_order, whole
from protonorm.analysis.plain_text import csv_lines
from protonorm.analysis.row import COLUMNS, Unread
from protonorm.core.digits import digits
from protonorm.runs.run import Run

FIELDS = (
    "method",
    "rule",
    "headline",
    "seed",
    "round",
    "chosen_by",
    *COLUMNS,
    "majority",
    "rounds_done",
    "run",
    "note",
)


def seed_lines(runs: Mapping[str, Sequence[Run | Unread]]) -> list[dict[str, Any]]:
    """List the numbers of each method, rule and seed, as fractions of one; None where there is none.

    `round` is the reported one, chosen under the headline rule. A run that cannot be read has a line that says why.
    """
    lines = []
    read = whole(runs)
    for method, found in runs.items():
        lines += [_line(method, run, rule) for run in read.get(method, []) for rule in rules_in_order(run)]
        lines += [_unread_line(method, one) for one in found if isinstance(one, Unread)]
    return lines


def csv_text(runs: Mapping[str, Sequence[Run | Unread]]) -> str:
    """Write these lines as CSV."""
    lines: list[Sequence[Any]] = [FIELDS]
    for line in seed_lines(runs):
        lines.append([digits(value) if isinstance(value, float) else value for value in line.values()])
    return csv_lines(lines)


def _line(method: str, run: Run, rule: str) -> dict[str, Any]:
    found = reported(run, rule)
    choice = found.choice if found and found.chosen else None
    numbers = {name: number(found) if found else None for name, (_, number) in COLUMNS.items()}
    values = {
        "method": method,
        "rule": rule,
        "headline": rule == run.info.headline,
        "seed": run.info.experiment.seed,
        "round": choice.record.round if choice else None,
        "chosen_by": choice.by if choice else None,
        **numbers,
        "majority": run.majority.pooled if run.majority else None,
        "rounds_done": len(run.rounds),
        "run": run.info.key,
        "note": f"stopped in round {run.failure.round}" if run.failure else None,
    }
    return {name: values[name] for name in FIELDS}


def _unread_line(method: str, unread: Unread) -> dict[str, Any]:
    known = {"method": method, "rule": unread.headline, "headline": True, "note": f"not read: {unread.reason}"}
    return {name: known.get(name) for name in FIELDS}
