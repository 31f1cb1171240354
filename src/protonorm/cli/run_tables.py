"""Tables of runs in a terminal, and a small curve of characters. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from protonorm.analysis.captions import caption
from protonorm.analysis.contrasts import Contrast
from protonorm.analysis.pairing import is_solo
from protonorm.analysis.printed import gain_cells
from protonorm.analysis.row import COLUMNS, Row
from protonorm.analysis.selecting import differing, settings_of, written
from protonorm.analysis.transfer import points
from protonorm.analysis.wording import OPTIMISTIC
from protonorm.cli.tables import Column, bold, fits, make_table
from protonorm.core.text import visible
from protonorm.runs.run import Run

BRIEF = ("accuracy", "best", "last")  # the columns beside gains, and where there is little room
NUMBERS = ("accuracy", "best*", "last")  # of a list of runs
CHOSEN_BY = {  # in which round, in a list of runs
    "validation": "in the round with the best validation accuracy",
    "test": "where * follows in the best test round, as there is no validation part",
    "last": "where not everybody was evaluated in any round in the last one",
}
PAGE = 110  # characters a line where there is no terminal to ask
BLOCKS = " ▁▂▃▄▅▆▇█"

Cells = list[str | Text]


def comparison_tables(title: str, rows: Sequence[Row], width: int) -> list[Table]:
    """Show methods side by side in lines of so many characters; the highest accuracy is bold if it stands out.

    Gains on Local stand beside the accuracies if there is room. If not, or if there are solo controls and so gains of
    two kinds, they are a table of their own.
    """
    gains = [row for row in rows if row.local or row.solo]
    if gains and not any(row.solo for row in gains):
        one = _accuracies(title, rows, BRIEF, beside=True, caption=_lines(caption(rows, BRIEF, gains=True)))
        if fits(one, width):
            return [one]
    columns = tuple(COLUMNS) if fits(_accuracies(title, rows, tuple(COLUMNS)), width) else BRIEF
    if not gains:
        return [_accuracies(title, rows, columns, caption=_lines(caption(rows, columns)))]
    tail = fits(_gains(gains), width)
    told = _lines(caption(rows, columns, gains=True, tail=tail))
    return [_accuracies(title, rows, columns), _gains(gains, tail=tail, caption=told)]


def runs_table(runs: Sequence[Run], width: int = PAGE) -> Table:
    """List runs, a line each, with the settings in which they differ, as many as lines of so many characters hold.

    Where there is little room, settings come before the best and the last round.
    """
    names, numbers = differing(runs), list(NUMBERS)
    cells = [_run_cells(run, names) for run in runs]

    def table(settings: Sequence[str], shown: Sequence[str]) -> Table:
        columns = [Column("run"), *map(Column, settings), Column("rounds"), Column("rule")]
        columns += [Column(name, "right") for name in shown]
        left = [name for name in names if name not in settings]
        lines = [[line[one.heading] for one in columns] for line in cells]
        return make_table("Runs", columns, lines, _about_runs(runs, shown, names, left))

    if not fits(table(names, numbers), width) and names:
        numbers = numbers[:1]
    held = list(names)
    while held and not fits(table(held, numbers), width):
        held.pop(-2 if held[-1] == "seed" and len(held) > 1 else -1)  # of all settings the seed goes last
    return table(held, numbers if held else list(NUMBERS))


def _run_cells(run: Run, settings: Sequence[str]) -> dict[str, str]:
    """Write what a list of runs tells of one; `*` follows an accuracy whose round the test part alone has chosen."""
    found, chosen, values = run.summary(), run.chosen, settings_of(run)
    reported = chosen.record.rules.get(run.info.headline) if chosen else None
    mark = "*" if chosen and chosen.by == "test" else ""
    told = {name: written(values[name]) if name in values else "" for name in settings}
    return told | {
        "run": f"{run.folder.name} (solo)" if is_solo(run) else run.folder.name,
        "rounds": f"{len(run.rounds)}/{run.info.experiment.rounds}" + (" failed" if run.failure else ""),
        "rule": run.info.headline,
        "accuracy": f"{100 * reported.pooled:.2f}{mark}" if reported else "–",
        "best*": f"{100 * found.best.pooled:.2f}" if found else "–",
        "last": f"{100 * found.last.pooled:.2f}" if found else "–",
    }


def _about_runs(runs: Sequence[Run], shown: Sequence[str], differ: Sequence[str], left: Sequence[str]) -> str:
    """Explain the columns of a list of runs, and say in what else the runs differ, or that they do not."""
    ways = {run.chosen.by for run in runs if run.chosen}
    chosen = "; ".join(meaning for way, meaning in CHOSEN_BY.items() if way in ways) or "in no round yet"
    told = f"Accuracy: pooled test accuracy in per cent, of one seed, under the method's headline rule, {chosen}."
    told += " Best*: in the best test round; last: in the last." if "last" in shown else ""
    told += f" {OPTIMISTIC}." if "test" in ways or "best*" in shown else ""
    told += "\nNo setting but rounds differs between these runs." if len(runs) > 1 and not differ else ""
    return told + (f"\nThe runs also differ in {', '.join(left)}; --json has all settings." if left else "")


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
    gain, lose, verdict = gain_cells(contrast)
    return [gain, lose, points(contrast.transfer.tail) if contrast.transfer else "–", verdict]


def _lines(sentences: Sequence[str]) -> str:
    """Put sentences below each other, each in one line, whatever names are in it."""
    return "\n".join(map(visible, sentences))


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
