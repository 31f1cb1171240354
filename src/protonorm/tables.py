"""Tables for people to read in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.table import Table

from protonorm.comparison import COLUMNS, Row, best
from protonorm.history import Run
from protonorm.models import Family
from protonorm.registry import Entry

BLOCKS = " ▁▂▃▄▅▆▇█"

RULES = {
    "global": "nearest global prototype",
    "local": "nearest local prototype",
    "logits": "the model's own logits",
    "received": "logits of the model as received",
}


def entries_table(title: str, entries: Mapping[str, Entry | Family]) -> Table:
    """List what can be chosen by name."""
    columns = sorted({column for entry in entries.values() for column in entry.details})
    table = _table(title)
    for column in ["name", *columns, "what it is"]:
        table.add_column(column, overflow="fold")
    for name, entry in entries.items():
        table.add_row(name, *(entry.details.get(column, "") for column in columns), entry.summary)
    return table


def comparison_table(title: str, rows: Sequence[Row], *, every_rule: bool = True) -> Table:
    """Show methods side by side; the best headline number of each column is bold."""
    table = _table(title)
    table.add_column("method", overflow="fold")
    table.add_column("rule", no_wrap=True)
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    winners = {column: best(rows, column) for column in COLUMNS}
    previous = None
    for row in rows:
        if not (row.headline or every_rule):
            continue
        cells = [_bold(str(cell), winners[column] is row) if (cell := row.cells[column]) else "–" for column in COLUMNS]
        table.add_row(row.method if row.method != previous else "", row.rule, *cells)
        previous = row.method
    notes = {f"{row.method} {row.note}." for row in rows if row.note}
    rules = sorted({row.rule for row in rows} & set(RULES))
    table.caption = (
        "Test accuracy in per cent: best and last round, pooled over clients; of the best round, the mean of clients "
        "and of their worst tenth; mean of each client's own best. Rules: "
        + "; ".join(f"{rule}, {RULES[rule]}" for rule in rules)
        + "."
        + "".join(f"\n{note}" for note in sorted(notes))
    )
    return table


def runs_table(runs: Sequence[Run]) -> Table:
    """List runs, a line each."""
    table = _table("Runs")
    for name in ("run", "rounds", "rule"):
        table.add_column(name, overflow="fold")
    for name in ("best", "last"):
        table.add_column(name, justify="right")
    for run in runs:
        found = run.summary()
        numbers = [f"{100 * found[name]['pooled']:.2f}" if found else "–" for name in ("best", "last")]
        state = f"{len(run.history)}/{run.experiment['rounds']}" + (" failed" if run.failure else "")
        table.add_row(run.folder.name, state, run.about["headline"], *numbers)
    table.caption = "Pooled test accuracy in per cent, under the method's headline rule."
    return table


def curve(values: Sequence[float | None], height: int = 8, width: int = 60) -> str:
    """Draw numbers from 0 to 1 as a small curve of characters, one column a round or several rounds together."""
    columns = min(width, len(values))
    cuts = [round(i * len(values) / columns) for i in range(columns + 1)] if columns else [0]
    known = [[one for one in values[a:b] if one is not None] for a, b in pairwise(cuts)]
    levels = [sum(part) / len(part) * height if part else None for part in known]
    rows = []
    for row in range(height - 1, -1, -1):
        marks = "".join(" " if level is None else BLOCKS[min(8, max(0, int((level - row) * 8)))] for level in levels)
        rows.append(f"{100 * (row + 1) / height:5.0f} │{marks}")
    return "\n".join([*rows, f"      └{'─' * columns} {len(values)} rounds"])


def _table(title: str) -> Table:
    return Table(title=title, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")


def _bold(text: str, wanted: bool) -> str:
    return f"[bold]{text}[/bold]" if wanted else text
