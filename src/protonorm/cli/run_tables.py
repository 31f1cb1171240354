"""Tables of runs in a terminal, and a small curve of characters. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from protonorm.analysis.comparison import COLUMNS, RULES, Row, best
from protonorm.cli.tables import Column, bold, make_table
from protonorm.core.text import visible
from protonorm.runs.reader import Run

BLOCKS = " ▁▂▃▄▅▆▇█"


def comparison_table(title: str, rows: Sequence[Row]) -> Table:
    """Show methods side by side; the best headline number of each column is bold."""
    winners = {column: best(rows, column) for column in COLUMNS}
    lines: list[list[str | Text]] = []
    previous = None
    for row in rows:
        cells = [bold(str(cell), winners[column] is row) if (cell := row.cells[column]) else "–" for column in COLUMNS]
        lines.append([row.method if row.method != previous else "", row.rule, *cells])
        previous = row.method
    notes = sorted({visible(f"{row.method} {row.note}.") for row in rows if row.note})
    rules = sorted({row.rule for row in rows} & set(RULES))
    caption = (
        "Test accuracy in per cent: best and last round, pooled over clients; of the best round, the mean of clients "
        "and of their worst tenth; mean of each client's own best. Rules: "
        + "; ".join(f"{rule}, {RULES[rule]}" for rule in rules)
        + "."
        + "".join(f"\n{note}" for note in notes)
    )
    columns = [Column("method"), Column("rule", no_wrap=True)]
    columns += [Column(heading, "right", no_wrap=True) for heading, _ in COLUMNS.values()]
    return make_table(title, columns, lines, caption)


def runs_table(runs: Sequence[Run]) -> Table:
    """List runs, a line each."""
    lines = []
    for run in runs:
        found = run.summary()
        numbers = [f"{100 * one.pooled:.2f}" for one in (found.best, found.last)] if found else ["–", "–"]
        state = f"{len(run.rounds)}/{run.info.experiment.rounds}" + (" failed" if run.failure else "")
        lines.append([run.folder.name, state, run.info.headline, *numbers])
    columns: list[Column | str] = ["run", "rounds", "rule", Column("best", "right"), Column("last", "right")]
    return make_table("Runs", columns, lines, "Pooled test accuracy in per cent, under the method's headline rule.")


def curve(values: Sequence[float | None], height: int = 8, width: int = 60) -> str:
    """Draw numbers from 0 to 1 as a small curve of characters, one column for each round or for several together."""
    columns = min(width, len(values))
    cuts = [round(i * len(values) / columns) for i in range(columns + 1)] if columns else [0]
    known = [[one for one in values[a:b] if one is not None] for a, b in pairwise(cuts)]
    levels = [sum(part) / len(part) * height if part else None for part in known]
    rows = []
    for row in range(height - 1, -1, -1):
        marks = "".join(" " if level is None else BLOCKS[min(8, max(0, int((level - row) * 8)))] for level in levels)
        rows.append(f"{100 * (row + 1) / height:5.0f} │{marks}")
    return "\n".join([*rows, f"      └{'─' * columns} {len(values)} rounds"])
