"""Tables of runs in a terminal, and a small curve of characters. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from protonorm.analysis.contrasts import Contrast
from protonorm.analysis.row import COLUMNS, Row
from protonorm.analysis.transfer import points
from protonorm.analysis.wording import (
    FEW,
    OPTIMISTIC,
    VERDICTS,
    how_chosen,
    meaning_of_rules,
    p_values,
    what_spread_is,
    who_gains_lines,
    why_bold,
)
from protonorm.cli.tables import Column, bold, make_table
from protonorm.core.text import visible
from protonorm.runs.reader import Run

NARROW = ("accuracy", "best", "last")  # the columns beside gains
BLOCKS = " ▁▂▃▄▅▆▇█"


def comparison_table(title: str, rows: Sequence[Row]) -> Table:
    """Show methods side by side; the highest accuracy is bold if it can be told apart from all others."""
    gains = any(row.local or row.solo for row in rows)
    solo = any(row.solo for row in rows)
    shown = NARROW if gains else tuple(COLUMNS)
    lines: list[list[str | Text]] = []
    previous = None
    for row in rows:
        texts = [_cell(row, column) for column in shown]
        contrasts = [(name, one) for name, one in (("local", row.local), ("solo", row.solo)) if one]
        first, *others = [_gain_cells(name if solo else "", one) for name, one in contrasts] or [[""] * (3 + solo)]
        lines.append([row.method if row.method != previous else "", row.rule, *texts, *(first if gains else [])])
        lines += [["", "", *[""] * len(shown), *one] for one in others]
        previous = row.method
    columns = [Column("method"), Column("rule", no_wrap=True)]
    columns += [Column(COLUMNS[name][0], "right", no_wrap=True) for name in shown]
    if gains:
        columns += [Column("against", no_wrap=True)] if solo else []
        columns += [Column("gain" if solo else "gain on local", no_wrap=True), Column("lose", "right", no_wrap=True)]
        columns += [Column("verdict", no_wrap=True)]
    table = make_table(title, columns, lines, _caption(rows, gains=gains))
    table.collapse_padding, table.pad_edge = True, False
    return table


def runs_table(runs: Sequence[Run]) -> Table:
    """List runs, a line each."""
    lines = []
    for run in runs:
        found, chosen = run.summary(), run.chosen
        reported = chosen.record.rules.get(run.info.headline) if chosen else None
        numbers = [f"{100 * reported.pooled:.2f}" if reported else "–"]
        numbers += [f"{100 * one.pooled:.2f}" for one in (found.best, found.last)] if found else ["–", "–"]
        state = f"{len(run.rounds)}/{run.info.experiment.rounds}" + (" failed" if run.failure else "")
        lines.append([run.folder.name, state, run.info.headline, *numbers])
    columns: list[Column | str] = ["run", "rounds", "rule"]
    columns += [Column(name, "right") for name in ("accuracy", "best*", "last")]
    caption = (
        "Pooled test accuracy in per cent, under the method's headline rule: in the round with the best validation "
        f"accuracy (without a validation part, in the best test round), in the best test round*, in the last. "
        f"{OPTIMISTIC}."
    )
    return make_table("Runs", columns, lines, caption)


def _cell(row: Row, column: str) -> str | Text:
    """Write a number; those of other rounds than the reported one have no interval, for want of room."""
    cell = row.cells[column]
    if cell is None:
        return "–"
    if column == "accuracy":
        return bold(str(cell), row.stands_out)
    return str(cell) if column in ("mean", "worst") else cell.short


def _gain_cells(reference: str, contrast: Contrast) -> list[str | Text]:
    """Write what a method gains against a reference, named if there are two, how many lose, and the verdict."""
    name: list[str | Text] = [reference] if reference else []
    found = contrast.transfer
    if found is None:
        return [*name, "–", "–", "not comparable"]
    interval = f" [{points(found.interval.low)}, {points(found.interval.high)}]" if found.interval else ""
    told: str = found.verdict or "no interval"
    short = told.replace(" ", "\n", 1) if reference else told  # with two references there is little room
    return [*name, f"{points(found.mean)}{interval}", f"{100 * found.negative:.0f} %", short]


def _caption(rows: Sequence[Row], *, gains: bool) -> str:
    """Explain the columns in plain words, then say what must be said of single methods."""
    clients = "Clients, worst 10 %: means over clients, and over their worst tenth, in that round. "
    told = [
        f"Accuracy: test accuracy in per cent, pooled over clients, {how_chosen(rows) or 'in no round yet'}. "
        f"{'' if gains else clients}Best*: the best test round; last: the last round"
        f"{'' if gains else '; own best*: the mean of each client in its own best test round'}. {OPTIMISTIC}. "
        f"{what_spread_is(rows)}",
        _about_gains(rows) if gains else "",
    ]
    told += [why_bold(rows), *who_gains_lines(rows), p_values(rows), meaning_of_rules(rows)]
    told += sorted({visible(f"{row.method} {row.note}.") for row in rows if row.note})
    return "\n".join(line.strip() for line in told if line)


def _about_gains(rows: Sequence[Row]) -> str:
    """Explain gains, and verdicts if there are any."""
    contrasts = [one.transfer for row in rows for one in (row.local, row.solo) if one and one.transfer]
    judged = any(one.verdict for one in contrasts)
    few = judged and min(one.seeds for one in contrasts) < FEW
    interval = "; in brackets its 95 % interval (bootstrap over seeds and clients)" if judged else ""
    return (
        "Gain: mean over clients, in points, of a client's accuracy minus that of the same client in the reference, "
        f"with the same seed, samples and network{interval}. Lose: share of the clients that lose."
        f"{f' Verdicts: {VERDICTS}.' if judged else ''}"
        f"{f' With fewer than {FEW} seeds the brackets may be too narrow.' if few else ''}"
    )


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
