"""The clients of a run, in a table or as CSV: who has what, how each does, and what it gains. Nothing needs torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from protonorm.analysis.alone import local_beside, locals_in
from protonorm.analysis.breakdown import client_rows
from protonorm.analysis.plain_text import csv_lines
from protonorm.analysis.transfer import points
from protonorm.cli.tables import Column, make_table
from protonorm.core.digits import digits
from protonorm.runs.arrays import BESIDE
from protonorm.runs.run import Run

MOST = 50  # clients in a table; of more, the first ones
PARTS = ("train", "validation", "test")
ABOUT = ("run", "method", "seed", "round", "client", "number", "network", *PARTS, "classes", "rule")
FIELDS = (*ABOUT, "accuracy", *BESIDE, "alone", "gain")  # of the CSV


def plain_clients(run: Run, alone: Run | None) -> list[dict[str, Any]]:
    """Give a run's clients as plain data; what is not known is None."""
    return [{name: _known(value) for name, value in row.items()} for row in client_rows(run, alone)]


def clients_csv(runs: Sequence[Run]) -> str:
    """Write the clients of runs as CSV, a line each."""
    known = {root: locals_in(root) for root in dict.fromkeys(run.folder.parent for run in runs)}
    found = [(run, plain_clients(run, local_beside(run, known[run.folder.parent]))) for run in runs]
    rows = [{"run": run.info.key} | row for run, clients in found for row in clients]
    return csv_lines([FIELDS, *([row.get(name) for name in FIELDS] for row in rows)])


def clients_table(run: Run, alone: Run | None) -> Table:
    """Show a run's clients in its reported round, and what the same clients reach alone if there is such a run."""
    rows = client_rows(run, alone)
    columns = [Column("client"), Column("samples", "right"), Column("classes", "right"), Column("network")]
    columns += [Column("accuracy", "right"), *([Column("alone", "right"), Column("gain", "right")] if alone else [])]
    lines = []
    for row in rows[:MOST]:
        beside = [_percent(row["alone"]), _points(row["gain"])] if alone else []
        has = [str(sum(row[part] for part in PARTS)), str(row["classes"])] if run.knows_samples else ["–", "–"]
        lines.append([row["client"], *has, row["network"], _percent(row["accuracy"]), *beside])
    return make_table("Clients", columns, lines, _caption(run, alone, len(rows)))


def _caption(run: Run, alone: Run | None, clients: int) -> str:
    told = f"Accuracy: of the client's own test samples, in per cent, rule {run.info.headline}, in the reported round."
    if alone:
        told += (
            f"\nAlone: the same client in {alone.folder.name}, where it trains by itself, rule {alone.info.headline}."
        )
        told += "\nGain: the difference in points; of one seed it may be chance."
    if clients > MOST:
        told += f"\nThese are the first {MOST} of {clients} clients; --csv and --json have all."
    return told


def _known(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else digits(value)
    return value


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.2f}"


def _points(value: float) -> str:
    return "–" if math.isnan(value) else points(value)
