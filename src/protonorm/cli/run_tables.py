"""Tables of runs, methods and clients, and a text plot of curves. Does not import torch."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from protonorm.analysis.breakdown import client_rows, local_beside, locals_in
from protonorm.analysis.comparison import COLUMNS, OPTIONAL, Row, columns_of, titled
from protonorm.analysis.contrasts import Contrast, is_solo, points
from protonorm.analysis.settings import differing, settings_of, written
from protonorm.analysis.tables import OPTIMISTIC, caption, gain_cells
from protonorm.cli.console import PAGE, Column, bold, fits, make_table
from protonorm.core.text import csv_lines, digits, percent, visible
from protonorm.runs.run import Run

BRIEF = ("accuracy", *OPTIONAL, "best", "last")  # columns beside gains, and on narrow terminals
NUMBERS: tuple[str, ...] = ("accuracy", "best*", "last")  # of a list of runs
CHOSEN_BY = {  # how the round was chosen, in a list of runs
    "validation": "in the round with the best validation accuracy",
    "test": "where * follows in the best test round, as there is no validation part",
    "last": "where not everybody was evaluated in any round in the last one",
}
MOST_SEEDS = 10  # maximum seeds of a heading that are all named
BLOCKS = " ▁▂▃▄▅▆▇█"

Cells = list[str | Text]


def seeds_text(seeds: Sequence[int]) -> str:
    """Return which seeds were used: seed 0, or seeds 0, 1, 2."""
    numbers = [str(seed) for seed in dict.fromkeys(seeds)]
    shown = numbers if len(numbers) <= MOST_SEEDS else [*numbers[:3], "…", numbers[-1]]
    return f"seed{'s' * (len(numbers) > 1)} {', '.join(shown)}" if numbers else ""


def comparison_tables(title: str, rows: Sequence[Row], width: int) -> list[Table]:
    """Build the tables of a comparison for lines of `width` characters; the highest accuracy is bold if it stands out.

    Gains over Local are beside the accuracies if they fit. If not, or if solo controls add a second kind of gain, they
    are in a separate table.
    """
    rows = titled(rows)
    gains, brief, every = [row for row in rows if row.local or row.solo], columns_of(rows, BRIEF), columns_of(rows)
    if gains and not any(row.solo for row in gains):
        table = _accuracies(title, rows, brief, with_seeds=True, caption=caption(rows))
        if fits(table, width):
            return [table]
    columns = every if fits(_accuracies(title, rows, every), width) else brief
    if not gains:
        return [_accuracies(title, rows, columns, caption=caption(rows))]
    tail = fits(_gains(gains), width)
    return [_accuracies(title, rows, columns), _gains(gains, tail=tail, caption=caption(rows))]


def runs_table(runs: Sequence[Run], width: int = PAGE) -> Table:
    """Build the list of runs, one per line, with as many of the differing settings as fit in `width` characters.

    On narrow terminals, settings take precedence over the best and the last round.
    """
    names, numbers = differing(runs), NUMBERS
    cells = [_run_cells(run, names) for run in runs]

    def table(settings: Sequence[str], shown: Sequence[str]) -> Table:
        columns = [*map(Column, ("run", *settings, "rounds", "rule")), *(Column(name, "right") for name in shown)]
        left = [name for name in names if name not in settings]
        lines = [[line[column.heading] for column in columns] for line in cells]
        return make_table("Runs", columns, lines, _about_runs(runs, shown, names, left))

    if names and not fits(table(names, numbers), width):
        numbers = NUMBERS[:1]
    kept = list(names)
    while kept and not fits(table(kept, numbers), width):
        kept.pop(-2 if kept[-1] == "seed" and len(kept) > 1 else -1)  # the seed is dropped last
    return table(kept, numbers if kept else NUMBERS)


def _run_cells(run: Run, settings: Sequence[str]) -> dict[str, str]:
    """Format a run's cells in a list; `*` marks an accuracy whose round was chosen by the test part alone."""
    summary, chosen, values = run.summary(), run.chosen, settings_of(run)
    reported = chosen.record.rules.get(run.info.headline) if chosen else None
    mark = "*" if chosen and chosen.by == "test" else ""
    return {name: written(values[name]) if name in values else "" for name in settings} | {
        "run": f"{run.folder.name} (solo)" if is_solo(run) else run.folder.name,
        "rounds": f"{len(run.rounds)}/{run.info.experiment.rounds}" + (" failed" if run.failure else ""),
        "rule": run.info.headline,
        "accuracy": f"{100 * reported.pooled:.2f}{mark}" if reported else "–",
        "best*": f"{100 * summary.best.pooled:.2f}" if summary else "–",
        "last": f"{100 * summary.last.pooled:.2f}" if summary else "–",
    }


def _about_runs(runs: Sequence[Run], shown: Sequence[str], differ: Sequence[str], left: Sequence[str]) -> str:
    """Explain the columns of a list of runs, and the differing settings that are not shown."""
    choices = {run.chosen.by for run in runs if run.chosen}
    chosen = "; ".join(meaning for choice, meaning in CHOSEN_BY.items() if choice in choices) or "in no round yet"
    text = f"Accuracy: pooled test accuracy in per cent, of one seed, under the method's headline rule, {chosen}."
    text += " Best*: in the best test round; last: in the last." if "last" in shown else ""
    text += f" {OPTIMISTIC}." if "test" in choices or "best*" in shown else ""
    text += "\nNo setting but rounds differs between these runs." if len(runs) > 1 and not differ else ""
    return text + (f"\nThe runs also differ in {', '.join(left)}; --json has all settings." if left else "")


def _accuracies(
    title: str, rows: Sequence[Row], shown: Sequence[str], *, with_seeds: bool = False, caption: Sequence[str] = ()
) -> Table:
    """Build the table of accuracies of methods under their rules, optionally with their gains over Local."""
    columns = [Column("method"), Column("rule", no_wrap=True)]
    columns += [Column(COLUMNS[name][0], "right", no_wrap=True) for name in shown]
    columns += _columns("gain on local", "lose", "verdict") if with_seeds else []
    lines: list[Cells] = []
    for row, previous in zip(rows, [None, *rows], strict=False):
        name = "" if previous and row.method == previous.method else row.method
        gain, lose, _, verdict = _gain_cells(row.local) if row.local else [""] * 4
        gains = [gain, lose, verdict] if with_seeds else []
        lines.append([name, row.rule, *(_cell(row, column) for column in shown), *gains])
    return _dense(title, columns, lines, caption)


def _gains(rows: Sequence[Row], *, tail: bool = True, caption: Sequence[str] = ()) -> Table:
    """Build the table of gains, client by client, over Local and over solo controls."""
    columns = [Column("method"), *_columns("against", "gain", "lose", *(["worst 10 %"] if tail else []), "verdict")]
    lines: list[Cells] = []
    for row in rows:
        contrasts = [(name, contrast) for name, contrast in (("local", row.local), ("solo", row.solo)) if contrast]
        for position, (name, contrast) in enumerate(contrasts):
            gain, lose, worst, verdict = _gain_cells(contrast)
            lines.append(["" if position else row.method, name, gain, lose, *([worst] if tail else []), verdict])
    return _dense("Gains, client by client, in points", columns, lines, caption)


def _columns(*names: str) -> list[Column]:
    return [Column(name, "right" if name in ("lose", "worst 10 %") else "left", no_wrap=True) for name in names]


def _dense(title: str, columns: Sequence[Column], lines: Sequence[Cells], caption: Sequence[str]) -> Table:
    table = make_table(title, columns, lines, "\n".join(map(visible, caption)))
    table.collapse_padding, table.pad_edge = True, False
    return table


def _cell(row: Row, column: str) -> str | Text:
    """Format a number; numbers of rounds other than the reported one have no interval, to save space."""
    if (cell := row.cells.get(column)) is None:
        return "–"
    if column == "accuracy":
        return bold(str(cell), row.stands_out)
    return str(cell) if column in ("mean", "worst", *OPTIONAL) else cell.short


def _gain_cells(contrast: Contrast) -> list[str]:
    """Format a method's gain against a reference, the share that loses, the worst tenth's gain, and the verdict."""
    gain, lose, verdict = gain_cells(contrast)
    return [gain, lose, points(contrast.transfer.tail) if contrast.transfer else "–", verdict]


def curve(values: Sequence[float | None], height: int = 8, width: int = 60) -> str:
    """Draw numbers from 0 to 1 as a text plot, with one column per round or per several rounds."""
    columns = min(width, len(values))
    cuts = [round(i * len(values) / columns) for i in range(columns + 1)] if columns else [0]
    evaluated = [[value for value in values[a:b] if value is not None] for a, b in pairwise(cuts)]
    levels = [sum(part) / len(part) * height if part else None for part in evaluated]
    rows = []
    for row in range(height - 1, -1, -1):
        marks = "".join(" " if level is None else BLOCKS[min(8, max(0, int((level - row) * 8)))] for level in levels)
        rows.append(f"{100 * (row + 1) / height:5.0f} │{marks}")
    return "\n".join([*rows, f"      └{'─' * columns} {len(values)} rounds"])


MOST = 50  # maximum clients in a table
PARTS = ("train", "validation", "test")
ABOUT = ("run", "method", "seed", "round", "client", "number", "network", *PARTS, "classes", "rule")


def plain_clients(run: Run, alone: Run | None) -> list[dict[str, Any]]:
    """Return a run's clients as plain data; unknown values are None."""

    def known(value: Any) -> Any:
        return value if not isinstance(value, float) else None if math.isnan(value) else digits(value)

    return [{name: known(value) for name, value in row.items()} for row in client_rows(run, alone)]


def clients_csv(runs: Sequence[Run]) -> str:
    """Render the clients of runs as CSV, one per line."""
    local_runs = {root: locals_in(root) for root in dict.fromkeys(run.folder.parent for run in runs)}
    clients = [(run, plain_clients(run, local_beside(run, local_runs[run.folder.parent]))) for run in runs]
    rows = [{"run": run.info.key} | row for run, listed in clients for row in listed]
    measures = dict.fromkeys(name for run in runs for name in run.measures)
    fields = (*ABOUT, "accuracy", *measures, "alone", "gain")
    return csv_lines([fields, *([row.get(name) for name in fields] for row in rows)])


def clients_table(run: Run, alone: Run | None) -> Table:
    """Build the table of a run's clients in its reported round, with their accuracy alone if there is such a run."""
    rows = client_rows(run, alone)
    columns = [Column("client"), Column("samples", "right"), Column("classes", "right"), Column("network")]
    columns += [Column(name, "right") for name in ("accuracy", *(("alone", "gain") if alone else ()))]
    lines = []
    for row in rows[:MOST]:
        comparison = [percent(row["alone"]), "–" if math.isnan(row["gain"]) else points(row["gain"])] if alone else []
        has = [str(sum(row[part] for part in PARTS)), str(row["classes"])] if run.knows_samples else ["–", "–"]
        lines.append([row["client"], *has, row["network"], percent(row["accuracy"]), *comparison])
    text = f"Accuracy: of the client's own test samples, in per cent, rule {run.info.headline}, in the reported round."
    if alone:
        reference = f"{alone.folder.name}, where it trains by itself, rule {alone.info.headline}"
        text += (
            f"\nAlone: the same client in {reference}.\nGain: the difference in points; of one seed it may be chance."
        )
    if any(record.newcomers for record in run.rounds):
        text += "\nClients without an accuracy are held out: they never train."
    if len(rows) > MOST:
        text += f"\nThese are the first {MOST} of {len(rows)} clients; --csv and --json have all."
    return make_table("Clients", columns, lines, text)
