"""Tables of runs in a terminal, and a small curve of characters. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table
from rich.text import Text

from protonorm.analysis.contrasts import Contrast
from protonorm.analysis.pairing import is_solo
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

BRIEF = ("accuracy", "best", "last")  # the columns beside gains, and where there is little room
ENDLESS = 10_000  # characters: more than any table needs
BLOCKS = " ▁▂▃▄▅▆▇█"

Cells = list[str | Text]


def comparison_tables(title: str, rows: Sequence[Row], width: int) -> list[Table]:
    """Show methods side by side in lines of so many characters; the highest accuracy is bold if it stands out.

    Gains on Local stand beside the accuracies if there is room. If not, or if there are solo controls and so gains of
    two kinds, they are a table of their own.
    """
    gains = [row for row in rows if row.local or row.solo]
    if gains and not any(row.solo for row in gains):
        one = _accuracies(title, rows, BRIEF, beside=True, caption=_caption(rows, BRIEF, gains=True))
        if _fits(one, width):
            return [one]
    columns = tuple(COLUMNS) if _fits(_accuracies(title, rows, tuple(COLUMNS)), width) else BRIEF
    if not gains:
        return [_accuracies(title, rows, columns, caption=_caption(rows, columns))]
    tail = _fits(_gains(gains), width)
    caption = _caption(rows, columns, gains=True, tail=tail)
    return [_accuracies(title, rows, columns), _gains(gains, tail=tail, caption=caption)]


def runs_table(runs: Sequence[Run]) -> Table:
    """List runs, a line each."""
    lines = []
    for run in runs:
        found, chosen = run.summary(), run.chosen
        reported = chosen.record.rules.get(run.info.headline) if chosen else None
        mark = "*" if chosen and chosen.by == "test" else ""  # nothing but the test part has chosen the round
        numbers = [f"{100 * reported.pooled:.2f}{mark}" if reported else "–"]
        numbers += [f"{100 * one.pooled:.2f}" for one in (found.best, found.last)] if found else ["–", "–"]
        state = f"{len(run.rounds)}/{run.info.experiment.rounds}" + (" failed" if run.failure else "")
        name = f"{run.folder.name} (solo)" if is_solo(run) else run.folder.name
        lines.append([name, state, run.info.headline, *numbers])
    columns: list[Column | str] = ["run", "rounds", "rule"]
    columns += [Column(name, "right") for name in ("accuracy", "best*", "last")]
    caption = (
        "Pooled test accuracy in per cent, under the method's headline rule: in the round with the best validation "
        "accuracy (where * follows there is no validation part, and it is the best test round); in the best test "
        "round*; in the last. "
        f"{OPTIMISTIC}."
    )
    return make_table("Runs", columns, lines, caption)


def _accuracies(
    title: str, rows: Sequence[Row], shown: Sequence[str], *, beside: bool = False, caption: str = ""
) -> Table:
    """Show the accuracies of methods under their rules, and beside them, if wanted, what they gain on Local."""
    columns = [Column("method"), Column("rule", no_wrap=True)]
    columns += [Column(COLUMNS[name][0], "right", no_wrap=True) for name in shown]
    columns += [Column("gain on local", no_wrap=True), Column("lose", "right", no_wrap=True)] if beside else []
    columns += [Column("verdict", no_wrap=True)] if beside else []
    lines: list[Cells] = []
    previous = None
    for row in rows:
        gain, lose, _, verdict = _gain_cells(row.local) if row.local else [""] * 4
        line: Cells = [row.method if row.method != previous else "", row.rule, *(_cell(row, name) for name in shown)]
        lines.append([*line, gain, lose, verdict] if beside else line)
        previous = row.method
    return _close(make_table(title, columns, lines, caption))


def _gains(rows: Sequence[Row], *, tail: bool = True, caption: str = "") -> Table:
    """Show what methods gain, client by client, on Local and on their own solo controls."""
    columns = [Column("method"), Column("against", no_wrap=True), Column("gain", no_wrap=True)]
    columns += [Column(name, "right", no_wrap=True) for name in ("lose", *(["worst 10 %"] if tail else []))]
    columns += [Column("verdict", no_wrap=True)]
    lines: list[Cells] = []
    for row in rows:
        found = [(name, one) for name, one in (("local", row.local), ("solo", row.solo)) if one]
        for place, (name, contrast) in enumerate(found):
            gain, lose, worst, verdict = _gain_cells(contrast)
            line: Cells = [row.method if not place else "", name, gain, lose]
            lines.append([*line, *([worst] if tail else []), verdict])
    return _close(make_table("Gains, client by client, in points", columns, lines, caption))


def _close(table: Table) -> Table:
    table.collapse_padding, table.pad_edge = True, False
    return table


def _fits(table: Table, width: int) -> bool:
    return Console(width=ENDLESS).measure(table).maximum <= width


def _cell(row: Row, column: str) -> str | Text:
    """Write a number; those of other rounds than the reported one have no interval, for want of room."""
    cell = row.cells[column]
    if cell is None:
        return "–"
    if column == "accuracy":
        return bold(str(cell), row.stands_out)
    return str(cell) if column in ("mean", "worst") else cell.short


def _gain_cells(contrast: Contrast) -> list[str]:
    """Write what a method gains against a reference, how many lose, what the worst tenth gains, and the verdict."""
    found = contrast.transfer
    if found is None:
        return ["–", "–", "–", "not comparable"]
    interval = f" [{points(found.interval.low)}, {points(found.interval.high)}]" if found.interval else ""
    lose = f"{100 * found.negative:.0f} %"
    return [f"{points(found.mean)}{interval}", lose, points(found.tail), found.verdict or "no interval"]


def _caption(rows: Sequence[Row], shown: Sequence[str], *, gains: bool = False, tail: bool = False) -> str:
    """Say what the numbers tell, then explain the columns in plain words, then what must be said of single methods."""
    controls = {row.solo.reference for row in rows if row.solo}  # how they do against Local is in the table
    told = [why_bold(rows), *who_gains_lines([row for row in rows if row.method not in controls]), p_values(rows)]
    clients = "Clients, worst 10 %: means over clients, and over their worst tenth, in that round. "
    own = "; own best*: the mean of each client in its own best test round"
    told += [
        f"Accuracy: test accuracy in per cent, pooled over clients, {how_chosen(rows) or 'in no round yet'}. "
        f"{clients if 'mean' in shown else ''}Best*: the best test round; last: the last round"
        f"{own if 'own_best' in shown else ''}. {OPTIMISTIC}. {what_spread_is(rows)}",
        _about_gains(rows, tail=tail) if gains else "",
        meaning_of_rules(rows),
    ]
    told += sorted({visible(f"{row.method} {row.note}.") for row in rows if row.note})
    return "\n".join(line.strip() for line in told if line)


def _about_gains(rows: Sequence[Row], *, tail: bool) -> str:
    """Explain gains, and verdicts if there are any."""
    contrasts = [one.transfer for row in rows for one in (row.local, row.solo) if one and one.transfer]
    judged = any(one.verdict for one in contrasts)
    few = judged and min(one.seeds for one in contrasts) < FEW
    interval = "; in brackets its 95 % interval (bootstrap over seeds and clients)" if judged else ""
    solo = (
        " Local: every client trains alone, so that a gain on it also counts what the method's loss brings. Solo: the "
        "same method, every client federating with itself alone; a gain on it is what the exchange brought."
    )
    return (
        "Gain: mean over clients, in points, of a client's accuracy minus that of the same client in the reference, "
        f"with the same seed, samples and network{interval}. Lose: share of the clients that lose"
        f"{'; worst 10 %: the mean gain of the tenth that gains least' if tail else ''}."
        f"{solo if any(row.solo for row in rows) else ''}"
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
