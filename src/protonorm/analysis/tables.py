"""Printed forms of a comparison: its caption, and the table in LaTeX, Markdown and CSV. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from protonorm.analysis.comparison import COLUMNS, RULES, Row, Unread, reported, rules_in_order, whole
from protonorm.analysis.contrasts import Contrast, points, who_gains
from protonorm.analysis.statistics import share_a_seed
from protonorm.core.text import csv_lines, digits, latex_comment, latex_label, latex_text, listed, markdown_text
from protonorm.runs.run import Run

CHOSEN = {  # how the reported round was chosen
    "validation": "in the round with the best mean validation accuracy under the method's headline rule",
    "test": "in the best test round, as there is no validation part: optimistic",
    "last": "in the last round that was evaluated, as not everybody was evaluated in any",
}
OPTIMISTIC = "* chosen by looking at the test accuracy, so that it is optimistic"
MEANINGS = {  # of the columns beside `accuracy`, which has a longer explanation
    "mean": "Clients: mean over clients, in that round",
    "worst": "Worst 10 %: mean over the worst tenth of the clients, in that round",
    "best": "Best*: the best test round",
    "last": "Last: the last round",
    "own_best": "Own best*: the mean of each client in its own best test round",
}
VERDICTS = {
    "better": "the whole interval lies above zero",
    "worse": "the whole interval lies below zero",
    "not distinguishable": "the interval holds zero, and more seeds may tell",
    "practically equal": "all of the interval is too near to zero to matter",
}
NOT_RANKED = "Accuracies under different rules are not ranked."
FEW = 5  # seeds below which the bootstrap's interval may be much too narrow (docs/statistics.md)
SHOWN = ("accuracy", "mean", "worst")  # columns of a printed table, without optimistic numbers
MARK = "Written by protonorm compare"  # identifies files written by this module
ABOUT = ("method", "rule", "headline", "seed", "round", "chosen_by")
FIELDS = (*ABOUT, *COLUMNS, "majority", "rounds_done", "run", "note")  # columns of the CSV


def caption(rows: Sequence[Row], shown: Sequence[str], *, gains: bool = False, tail: bool = False) -> list[str]:
    """Return the sentences of a caption: findings, explanations of the columns shown, and notes on single methods.

    `gains` adds the explanation of gains, `tail` that of the gains of the worst tenth of the clients.
    """
    controls = {row.solo.reference for row in rows if row.solo}  # their gains over Local are in the table
    told = [why_bold(rows), *who_gains_lines([row for row in rows if row.method not in controls]), p_values(rows)]
    told += [_about_accuracy(rows, shown), _about_gains(rows, tail=tail) if gains else "", meaning_of_rules(rows)]
    told += sorted({f"{row.method} {row.note}." for row in rows if row.note})
    return list(filter(None, told))


def how_chosen(table: Sequence[Row]) -> str:
    """Describe how the reported rounds were chosen."""
    ways = {row.method: row.chosen_by.split(", ") for row in table if row.headline and row.chosen_by}
    named = {way: [name for name, some in ways.items() if way in some] for some in ways.values() for way in some}
    if len(named) < 2:
        return "".join(CHOSEN[way] for way in named)
    return "; ".join(f"of {listed(names)} {CHOSEN[way]}" for way, names in named.items())


def what_spread_is(table: Sequence[Row]) -> str:
    """Describe the number of seeds and the meaning of ±, or why it is missing; empty if no round was evaluated."""
    heads = [row for row in table if row.headline and row.seeds]
    shared = [f"the {len(row.seeds)} runs of {row.method}" for row in heads if share_a_seed(row.seeds)]
    single = [row.method for row in heads if len(row.seeds) == 1]
    if heads and len(single) == len(heads):
        return "One seed: there is no interval, and nothing says whether a difference is chance."
    counts: dict[int, list[str]] = {}  # methods by their number of seeds
    for row in heads:
        if len(row.seeds) > 1 and not share_a_seed(row.seeds):
            counts.setdefault(len(row.seeds), []).append(row.method)
    told, interval = [], "± is half of the 95 % interval of the mean over"
    if len(counts) == 1:
        told.append(f"{interval} {next(iter(counts))} seeds (Student's t).")
    elif counts:
        each = ", ".join(f"{count} of {listed(names)}" for count, names in counts.items())
        told.append(f"{interval} seeds (Student's t): {each}.")
    if single:
        told.append(f"{listed(single)} {'has' if len(single) == 1 else 'have'} one seed, and no interval.")
    if shared:
        told.append(f"Among {listed(shared)} some share a seed: they have no interval, not being independent.")
    return " ".join(told)


def why_bold(table: Sequence[Row]) -> str:
    """Explain what is bold, or why nothing is; empty for a single method. Methods within chance are not named.

    Methods are ranked under one rule at a time.
    """
    heads = [row for row in table if row.headline and not row.is_majority]
    several = len({row.rule for row in heads}) > 1
    told = []
    for row in (row for row in heads if row.leads):
        where = f" under the rule {row.rule}" if several else ""
        if row.stands_out:
            apart = f"the accuracy of {row.method} can be told apart from that of every other method{where}"
            told.append(f"Bold: {apart}.{is_hint(row)}")
        else:
            apart = f"that of {row.method} cannot be told apart from that of {_rivals(row)}"
            told.append(f"No accuracy{where} is bold: {apart}.")
    if several and not told:
        told = ["No accuracy is bold: each method is judged under a rule of its own."]
    return " ".join([*told, NOT_RANKED] if several else told)


def is_hint(row: Row) -> str:
    """Return the caveat for few seeds; empty if there are enough."""
    return f" With fewer than {FEW} seeds that is a hint." if 0 < len(row.seeds) < FEW else ""


def who_gains_lines(table: Sequence[Row]) -> list[str]:
    """Describe for each method how many clients gain and lose against Local and its solo control, or the mismatch."""
    return [
        f"{row.method} against {reference}: {who_gains(contrast.transfer)}"
        if contrast.transfer
        else f"{row.method} has no gain against {reference}: they differ in {contrast.mismatch}."
        for row, reference, contrast in _references(table)
    ]


def p_values(table: Sequence[Row]) -> str:
    """List the Holm-corrected p-values of the sign-flip tests; empty below six seeds."""
    found = [
        f"{row.method} against {reference} p {'<' if p < 0.001 else '='} {max(p, 0.001):.3f}"
        for row, reference, contrast in _references(table)
        if contrast.transfer and (p := contrast.transfer.p_holm) is not None
    ]
    return f"Sign-flip test over seeds, p corrected by Holm: {', '.join(found)}." if found else ""


def meaning_of_verdicts(found: Collection[str | None]) -> str:
    """Explain the verdicts that occur."""
    return "; ".join(f"{name}: {meaning}" for name, meaning in VERDICTS.items() if name in found)


def meaning_of_rules(table: Sequence[Row]) -> str:
    """Explain the rules of a table."""
    rules = sorted({row.rule for row in table} & set(RULES))
    return f"Rules: {'; '.join(f'{rule}, {RULES[rule]}' for rule in rules)}." if rules else ""


class TableCell(NamedTuple):
    """Cell of a printed table."""

    text: str
    bold: bool = False


class PrintedTable(NamedTuple):
    """Table of plain text: headings, whether their columns are numeric, lines, and the caption's sentences."""

    title: str
    columns: list[tuple[str, bool]]
    lines: list[list[TableCell]]
    caption: list[str]


def printed_table(title: str, rows: Sequence[Row]) -> PrintedTable:
    """Build the printed table of a comparison: accuracies, and gains over the available references."""
    kinds = [kind for kind in ("local", "solo") if any(row.contrast(kind) for row in rows)]
    columns = [("method", False), ("rule", False), *((COLUMNS[name][0], True) for name in SHOWN)]
    columns += [one for kind in kinds for one in ((f"gain on {kind}", True), ("lose", True), ("verdict", False))]
    lines = []
    for before, row in zip([None, *rows], rows, strict=False):
        texts = ["" if before and row.method == before.method else row.method, "–" if row.is_majority else row.rule]
        line = [*map(TableCell, texts), TableCell(row.text("accuracy"), row.stands_out)]
        texts = [row.text(name) for name in SHOWN[1:]]
        texts += [text for kind in kinds for text in gain_cells(row.contrast(kind))]
        lines.append([*line, *map(TableCell, texts)])
    return PrintedTable(title, columns, lines, caption(rows, SHOWN, gains=bool(kinds)))


def gain_cells(contrast: Contrast | None) -> list[str]:
    """Format a method's gain against a reference with its interval, the share of losing clients, and the verdict."""
    if contrast is None:
        return ["", "", ""]
    found = contrast.transfer
    if found is None:
        return ["–", "–", "not comparable"]
    interval = f" [{points(found.interval.low)}, {points(found.interval.high)}]" if found.interval else ""
    return [f"{points(found.mean)}{interval}", f"{100 * found.negative:.0f} %", found.verdict or "no interval"]


def latex_table(table: PrintedTable) -> str:
    """Render the table as a LaTeX environment; it needs booktabs, and LaTeX of 2018 or later for UTF-8."""

    def row(cells: Sequence[TableCell]) -> str:
        texts = [(f"\\textbf{{{latex_text(text)}}}" if bold else latex_text(text)) for text, bold in cells]
        return f"    {' & '.join(texts)} \\\\"

    lines = [
        *map(latex_comment, [MARK, "needs \\usepackage{booktabs}"]),
        "\\begin{table*}[t]",
        "  \\centering\\small",
        f"  \\begin{{tabular}}{{{''.join('r' if number else 'l' for _, number in table.columns)}}}",
        "    \\toprule",
        row([TableCell(name) for name, _ in table.columns]),
        "    \\midrule",
        *map(row, table.lines),
        "    \\bottomrule",
        "  \\end{tabular}",
        f"  \\caption{{{latex_text(f'{table.title}. ')}{latex_text(' '.join(table.caption))}}}",
        f"  {latex_label('comparison')}",
        "\\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def markdown_table(table: PrintedTable) -> str:
    """Render the table as Markdown, with each sentence of the caption as a paragraph below."""

    def row(cells: Sequence[TableCell]) -> str:
        texts = [(f"**{markdown_text(text)}**" if bold else markdown_text(text)) for text, bold in cells]
        return f"| {' | '.join(texts)} |"

    lines = [
        f"<!-- {MARK} -->",
        f"### {markdown_text(table.title)}",
        "",
        row([TableCell(name) for name, _ in table.columns]),
        f"| {' | '.join('---:' if number else '---' for _, number in table.columns)} |",
        *map(row, table.lines),
        *(line for sentence in table.caption for line in ("", markdown_text(sentence))),
    ]
    return "\n".join(lines) + "\n"


def seed_lines(runs: Mapping[str, Sequence[Run | Unread]]) -> list[dict[str, Any]]:
    """List the numbers of each method, rule and seed, as fractions; None where a number is missing.

    `round` is the reported round, chosen under the headline rule. An unreadable run has a line with the reason.
    """
    lines: list[dict[str, Any]] = []
    read = whole(runs)
    for method, found in runs.items():
        lines += [_seed_line(method, run, rule) for run in read.get(method, []) for rule in rules_in_order(run)]
        lines += [
            {"method": method, "rule": one.headline, "headline": True, "note": f"not read: {one.reason}"}
            for one in found
            if isinstance(one, Unread)
        ]
    return [{name: line.get(name) for name in FIELDS} for line in lines]


def csv_text(runs: Mapping[str, Sequence[Run | Unread]]) -> str:
    """Render these lines as CSV."""
    lines = [[digits(one) if isinstance(one, float) else one for one in line.values()] for line in seed_lines(runs)]
    return csv_lines([FIELDS, *lines])


def _seed_line(method: str, run: Run, rule: str) -> dict[str, Any]:
    found = reported(run, rule)
    choice = found.choice if found and found.chosen else None
    return {
        "method": method,
        "rule": rule,
        "headline": rule == run.info.headline,
        "seed": run.info.experiment.seed,
        "round": choice.record.round if choice else None,
        "chosen_by": choice.by if choice else None,
        **{name: number(found) if found else None for name, (_, number) in COLUMNS.items()},
        "majority": run.majority.pooled if run.majority else None,
        "rounds_done": len(run.rounds),
        "run": run.info.key,
        "note": f"stopped in round {run.failure.round}" if run.failure else None,
    }


def _about_accuracy(rows: Sequence[Row], shown: Sequence[str]) -> str:
    """Explain the columns of accuracies: how their round was chosen, the number of seeds, and ±."""
    told = [f"Accuracy: test accuracy in per cent, pooled over clients, {how_chosen(rows) or 'in no round yet'}."]
    told += [f"{others}." for others in ["; ".join(MEANINGS[name] for name in shown if name in MEANINGS)] if others]
    told += [f"{OPTIMISTIC}."] if any(COLUMNS[name][0].endswith("*") for name in shown) else []
    told += [what_spread_is(rows)]
    told += ["Majority: guessing each client's most frequent class."] if any(row.is_majority for row in rows) else []
    return " ".join(filter(None, told))


def _about_gains(rows: Sequence[Row], *, tail: bool) -> str:
    """Explain gains, and the verdicts that occur."""
    found = [one.transfer for row in rows for one in (row.local, row.solo) if one and one.transfer]
    judged = [one for one in found if one.verdict]
    interval = "; in brackets its 95 % interval (bootstrap over seeds and clients)" if judged else ""
    told = [
        "Gain: mean over clients, in points, of a client's accuracy minus that of the same client in the reference, "
        f"with the same seed, samples and network, each under its own headline rule{interval}. Lose: share of the "
        f"clients that lose{'; worst 10 %: the mean gain of the tenth that gains least' if tail else ''}."
    ]
    if any(row.solo for row in rows):
        told += [
            "Local: every client trains alone, so that a gain on it also counts what the method's loss brings. Solo: "
            "the same method, every client federating with itself alone; a gain on it is what the exchange brought."
        ]
    if judged:
        told += [f"Verdicts: {meaning_of_verdicts([one.verdict for one in judged])}."]
        few = min(one.seeds for one in judged) < FEW
        told += [f"With fewer than {FEW} seeds the brackets may be too narrow."] if few else []
    return " ".join(told)


def _rivals(row: Row) -> str:
    """List the methods that a row is not distinguishable from, with reasons; a common reason is given once."""
    reasons = dict.fromkeys(row.alike.values())
    if len(reasons) == 1:
        return f"{listed(list(row.alike))} ({next(iter(reasons))})"
    return listed([f"{name} ({why})" for name, why in row.alike.items()])


def _references(table: Sequence[Row]) -> list[tuple[Row, str, Contrast]]:
    """List the references of each method: Local, and its solo control."""
    found = []
    for row in table:
        found += [(row, row.local.reference, row.local)] if row.local else []
        found += [(row, "its solo control", row.solo)] if row.solo else []
    return found
