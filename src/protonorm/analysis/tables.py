"""Printed forms of a comparison: its caption, and the table in LaTeX, Markdown and CSV. Does not import torch."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from protonorm.analysis.comparison import (
    COLUMNS,
    OPTIONAL,
    RULES,
    Row,
    Unread,
    columns_of,
    reported,
    rules_in_order,
    titled,
    whole,
)
from protonorm.analysis.contrasts import Contrast, Transfer, points, who_gains
from protonorm.analysis.settings import grouped
from protonorm.analysis.statistics import share_a_seed
from protonorm.core import text
from protonorm.core.text import listed
from protonorm.runs.run import Run

CHOSEN = {  # how the reported round was chosen
    "validation": "in the round with the best mean validation accuracy under the method's headline rule",
    "test": "in the best test round, as there is no validation part: optimistic",
    "last": "in the last round that was evaluated, as not everybody was evaluated in any",
}
OPTIMISTIC = "* chosen by looking at the test accuracy, so that it is optimistic"
VERDICTS = {
    "better": "the whole interval lies above zero",
    "worse": "the whole interval lies below zero",
    "not distinguishable": "the interval holds zero, and more seeds may tell",
    "practically equal": "all of the interval is too near to zero to matter",
}
TERMS = "Columns, rules, gains and verdicts: docs/statistics.md."
NOT_RANKED = "Accuracies under different rules are not ranked."
FEW = 5  # seeds below which the bootstrap's interval may be much too narrow (docs/statistics.md)
SHOWN = ("accuracy", "mean", "worst", *OPTIONAL)  # columns of a printed table, without optimistic numbers
CAPTION = "Test accuracy in per cent, pooled over clients, each method under its headline rule."
BOLD = " Bold: distinguishable from all others under its rule."
TITLE = 14  # maximum words of a title in a caption of at most 40 words
NARROW, LONGEST = 15, 48  # characters of a name that fit in one line of a narrow column, and in several
NEEDS = "needs \\usepackage{booktabs}"
MARK = "Written by protonorm compare"  # identifies files written by this module
ABOUT = ("method", "rule", "headline", "seed", "round", "chosen_by")
FIELDS = (*ABOUT, *COLUMNS, "majority", "rounds_done", "run", "note")  # columns of the CSV


def caption(rows: Sequence[Row]) -> list[str]:
    """Return the sentences of a caption: findings, how the numbers were made, and notes on single methods.

    The meaning of columns, gains, verdicts and rules is the same for every table, and is in the documentation.
    """
    controls = {row.solo.reference for row in rows if row.solo}  # their gains over Local are in the table
    seeds = [transfer.seeds for transfer in _transfers(rows) if transfer.verdict]
    narrow = f" With fewer than {FEW} seeds intervals of gains may be too narrow." if seeds and min(seeds) < FEW else ""
    accuracy = f"Accuracy: test accuracy in per cent, pooled over clients, {how_chosen(rows) or 'in no round yet'}."
    sentences = [why_bold(rows), *who_gains_lines([row for row in rows if row.method not in controls]), p_values(rows)]
    sentences += [f"{accuracy} {what_spread_is(rows)}".strip(), other_tests(rows), f"{TERMS}{narrow}"]
    return [*filter(None, sentences), *sorted({f"{row.method} {row.note}." for row in rows if row.note})]


def other_tests(table: Sequence[Row]) -> str:
    """Describe the tests beside clients' own that some rows have; empty if there are none."""
    return " ".join(f"{name.capitalize()}: accuracy {OPTIONAL[name]}." for name in columns_of(table, OPTIONAL))


def how_chosen(table: Sequence[Row]) -> str:
    """Describe how the reported rounds were chosen."""
    heads = [row for row in table if row.headline and row.chosen_by]
    methods = grouped((choice, row.method) for row in heads for choice in row.chosen_by.split(", "))
    if len(methods) < 2:
        return "".join(CHOSEN[choice] for choice in methods)
    return "; ".join(f"of {listed(names)} {CHOSEN[choice]}" for choice, names in methods.items())


def what_spread_is(table: Sequence[Row]) -> str:
    """Describe the number of seeds and the meaning of ±, or why it is missing; empty if no round was evaluated."""
    heads = [row for row in table if row.headline and row.seeds]
    single = [row.method for row in heads if len(row.seeds) == 1]
    if heads and len(single) == len(heads):
        return "One seed: there is no interval, and nothing says whether a difference is chance."
    shared = [f"the {len(row.seeds)} runs of {row.method}" for row in heads if share_a_seed(row.seeds)]
    repeated = [row for row in heads if len(row.seeds) > 1 and not share_a_seed(row.seeds)]
    methods = grouped((len(row.seeds), row.method) for row in repeated)
    sentences = []
    if pairs := methods.pop(2, []):
        sentences.append(f"A range holds the values of the two seeds{f' of {listed(pairs)}' if methods else ''}.")
    if methods:
        counts = ", ".join(f"{count} of {listed(names)}" for count, names in methods.items())
        seeds = f"{next(iter(methods))} seeds (Student's t)" if len(methods) == 1 else f"seeds (Student's t): {counts}"
        sentences.append(f"± is half of the 95 % interval of the mean over {seeds}.")
    if single:
        sentences.append(f"{listed(single)} {'has' if len(single) == 1 else 'have'} one seed, and no interval.")
    if shared:
        sentences.append(f"Among {listed(shared)} some share a seed: they have no interval, not being independent.")
    return " ".join(sentences)


def why_bold(table: Sequence[Row]) -> str:
    """Explain what is bold, or why nothing is; empty for a single method. Methods within chance are not named.

    Methods are ranked under one rule at a time.
    """
    heads = [row for row in table if row.headline and not row.is_majority]
    many_rules = len({row.rule for row in heads}) > 1
    sentences = []
    for row in (row for row in heads if row.leads):
        where = f" under the rule {row.rule}" if many_rules else ""
        if row.stands_out:
            apart = f"the accuracy of {row.method} can be told apart from that of every other method{where}"
            sentences.append(f"Bold: {apart}.{is_hint(row)}")
        else:
            reasons = set(row.alike.values())
            rivals = listed([f"{name} ({reason})" for name, reason in row.alike.items()])
            if len(reasons) == 1:  # a common reason is given once
                rivals = f"{listed(list(row.alike))} ({reasons.pop()})"
            apart = f"that of {row.method} cannot be told apart from that of {rivals}"
            sentences.append(f"No accuracy{where} is bold: {apart}.")
    if many_rules:
        sentences = sentences or ["No accuracy is bold: each method is judged under a rule of its own."]
        sentences.append(NOT_RANKED)
    return " ".join(sentences)


def is_hint(row: Row) -> str:
    """Return the caveat for few seeds; empty if there are enough."""
    return f" With fewer than {FEW} seeds that is a hint." if 0 < len(row.seeds) < FEW else ""


def who_gains_lines(table: Sequence[Row]) -> list[str]:
    """Describe for each method how many clients gain and lose against Local and its solo control, or the mismatch."""
    return [
        f"{row.method} against {reference}: {who_gains(contrast.transfer)}"
        if contrast.transfer
        else no_gain(row, contrast, reference)
        for row, reference, contrast in _references(table)
    ]


def no_gain(row: Row, contrast: Contrast, reference: str) -> str:
    """Describe why a method has no gain against a reference."""
    return f"{row.method} has no gain against {reference}: they differ in {contrast.mismatch}."


def p_values(table: Sequence[Row]) -> str:
    """List the Holm-corrected p-values of the sign-flip tests; empty below six seeds."""
    tests = [
        f"{row.method} against {reference} p {'<' if p < 0.001 else '='} {max(p, 0.001):.3f}"
        for row, reference, contrast in _references(table)
        if contrast.transfer and (p := contrast.transfer.p_holm) is not None
    ]
    return f"Sign-flip test over seeds, p corrected by Holm: {', '.join(tests)}." if tests else ""


def meaning_of_verdicts(transfers: Collection[Transfer]) -> str:
    """Explain the verdicts that occur, and when their intervals are unreliable; empty if there are none."""
    judged = [transfer for transfer in transfers if transfer.verdict]
    if not judged:
        return ""
    verdicts = {transfer.verdict for transfer in judged}
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in VERDICTS.items() if name in verdicts)
    caveat = f" With fewer than {FEW} seeds these intervals may be too narrow."
    return f"Verdicts: {meanings}.{caveat if min(transfer.seeds for transfer in judged) < FEW else ''}"


def gain_cells(contrast: Contrast | None) -> list[str]:
    """Format a method's gain against a reference with its interval, the share of losing clients, and the verdict."""
    if contrast is None:
        return ["", "", ""]
    transfer = contrast.transfer
    if transfer is None:
        return ["–", "–", "not comparable"]
    interval = f" [{points(transfer.interval.low)}, {points(transfer.interval.high)}]" if transfer.interval else ""
    return [f"{points(transfer.mean)}{interval}", f"{100 * transfer.negative:.0f} %", transfer.verdict or "no interval"]


def markdown_table(title: str, rows: Sequence[Row]) -> str:
    """Render the table of all rules as Markdown, with each sentence of the caption as a paragraph below."""
    rows, kinds, shown = titled(rows), _kinds(rows), columns_of(rows, SHOWN)
    head = ["method", "rule", *(COLUMNS[name][0] for name in shown)]
    head += [name for kind in kinds for name in (f"gain on {kind}", "lose", "verdict")]
    lines = []
    for before, row in zip([None, *rows], rows, strict=False):
        name = "" if before and row.method == before.method else row.method
        texts = [name, "–" if row.is_majority else row.rule, *map(row.text, shown)]
        texts += [cell for kind in kinds for cell in gain_cells(row.contrast(kind))]
        texts = list(map(text.markdown_text, texts))
        lines.append([*texts[:2], f"**{texts[2]}**" if row.stands_out else texts[2], *texts[3:]])
    body = text.markdown_lines("ll" + "r" * len(shown) + "rrl" * len(kinds), head, lines)
    paragraphs = [f"\n{text.markdown_text(sentence)}" for sentence in caption(rows)]
    return "\n".join([f"<!-- {MARK} -->", f"### {text.markdown_text(title)}", "", *body, *paragraphs, ""])


def latex_table(title: str, rows: Sequence[Row], label: str = "comparison") -> str:
    """Render the headline rules as a LaTeX table that fits a column of a two-column page, with notes below.

    With several other tests, or with some and two kinds of gains, it spans both columns.

    It needs booktabs, and LaTeX of 2018 or later for UTF-8. Findings that are too long for notes are comments.
    """
    rows, kinds = [row for row in titled(rows) if row.headline], _kinds(rows)
    tests = columns_of(rows, OPTIONAL)  # take the place of the worst tenth
    brief = len(kinds) > 1  # no room for the worst tenth and for intervals of gains
    worst = not brief and not tests
    wrap = max((len(row.method) for row in rows), default=0) > NARROW
    name, column = ("\\raggedright %s", "p{0.27\\columnwidth}") if wrap else ("%s", "l")
    lines = []
    for row in rows:
        texts = [cell.text(digits=1) if (cell := row.cells["accuracy"]) else "–"]
        means = [row.cells.get(name) for name in (tests or (["worst"] if worst else []))]
        texts += [f"{100 * cell.mean:.1f}" if cell else "–" for cell in means]
        texts += [_short_gain(row.contrast(kind), brief) for kind in kinds]
        first, *further = map(text.latex_text, texts)
        first = f"\\textbf{{{first}}}" if row.stands_out else first
        lines.append(" & ".join([name % text.latex_text(text.shortened(row.method, LONGEST)), first, *further]))
    others = [name.capitalize() for name in tests] or (["Worst"] if worst else [])
    head = ["Method", "Accuracy", *others, *(f"Gain on {kind}" for kind in kinds)]
    return text.latex_float(
        [MARK, NEEDS, *caption(rows)],
        column + "r" * (len(head) - 1),
        [f"{' & '.join(head)} \\\\"],
        [f"{line} \\\\" for line in lines],
        f"{text.first_words(title, TITLE)}. {CAPTION}{BOLD if any(row.stands_out for row in rows) else ''}",
        label,
        _notes(rows, kinds, brief),
        wide=bool(tests) and len(tests) + len(kinds) > 2,
    )


def _notes(rows: Sequence[Row], kinds: Sequence[str], brief: bool) -> list[str]:
    """Return the notes of a LaTeX table: how its numbers were made, and what is wrong with single methods."""
    methods = {rule: listed([row.method for row in rows if row.rule == rule]) for rule in {row.rule: 0 for row in rows}}
    rules = "; ".join(f"{RULES[rule]}: {names}" for rule, names in methods.items() if rule in RULES)
    against = {"local": "the same clients training alone", "solo": "the same clients federating with themselves alone"}
    references = " and over ".join(against[kind] for kind in kinds)
    seeds = [transfer.seeds for transfer in _transfers(rows) if transfer.interval]
    interval = "; a star: its 95 % bootstrap interval excludes zero" if brief else " with its 95 % bootstrap interval"
    narrow = f" (fewer than {FEW} seeds: it may be too narrow)" if seeds and min(seeds) < FEW else ""
    sentences = [
        f"Accuracy {how_chosen(rows) or 'in no round yet'}.",
        what_spread_is(rows),
        other_tests(rows) or ("" if brief else "Worst: mean over the worst tenth of the clients."),
        f"Gain: mean over clients, in points, over {references}{interval + narrow if seeds else ''}." if kinds else "",
        f"Judged by {rules}." if rules else "",
        *(f"{row.method} {row.note}." for row in rows if row.note),
    ]
    return list(filter(None, sentences))


def _short_gain(contrast: Contrast | None, brief: bool) -> str:
    """Format a gain for a narrow column: with its interval, or if `brief` with a star if that excludes zero."""
    transfer = contrast.transfer if contrast else None
    if transfer is None:
        return "–" if contrast else ""
    if brief or not transfer.interval:
        return points(transfer.mean, 1) + ("*" if brief and transfer.verdict in ("better", "worse") else "")
    return f"{points(transfer.mean, 1)} [{', '.join(points(end, 1) for end in transfer.interval)}]"


def _kinds(rows: Sequence[Row]) -> list[str]:
    """List the references that some rows have gains against."""
    return [kind for kind in ("local", "solo") if any(row.contrast(kind) for row in rows)]


def seed_lines(runs: Mapping[str, Sequence[Run | Unread]]) -> list[dict[str, Any]]:
    """List the numbers of each method, rule and seed, as fractions; None where a number is missing.

    `round` is the reported round, chosen under the headline rule. An unreadable run has a line with the reason.
    """
    lines: list[dict[str, Any]] = []
    read = whole(runs)
    for method, outcomes in runs.items():
        pairs = [(run, rule) for run in read.get(method, []) for rule in rules_in_order(run)]
        for run, rule in pairs:
            numbers = reported(run, rule)
            choice = numbers.choice if numbers and numbers.chosen else None
            line = {"method": method, "rule": rule, "headline": rule == run.info.headline}
            line |= {"seed": run.info.experiment.seed, "majority": run.majority.pooled if run.majority else None}
            line |= {"round": choice.record.round, "chosen_by": choice.by} if choice else {}
            line |= {name: number(numbers) for name, (_, number) in COLUMNS.items()} if numbers else {}
            line |= {"note": f"stopped in round {run.failure.round}"} if run.failure else {}
            lines.append(line | {"rounds_done": len(run.rounds), "run": run.info.key})
        lines += [
            {"method": method, "rule": run.headline, "headline": True, "note": f"not read: {run.reason}"}
            for run in outcomes
            if isinstance(run, Unread)
        ]
    return [{name: line.get(name) for name in FIELDS} for line in lines]


def csv_text(runs: Mapping[str, Sequence[Run | Unread]]) -> str:
    """Render these lines as CSV."""
    rows = (line.values() for line in seed_lines(runs))
    return text.csv_lines(
        [FIELDS, *([text.digits(value) if isinstance(value, float) else value for value in row] for row in rows)]
    )


def _transfers(rows: Sequence[Row]) -> list[Transfer]:
    return [contrast.transfer for row in rows for contrast in (row.local, row.solo) if contrast and contrast.transfer]


def _references(table: Sequence[Row]) -> list[tuple[Row, str, Contrast]]:
    """List the references of each method: Local, and its solo control."""
    pairs = [(row, contrast, contrast is row.solo) for row in table for contrast in (row.local, row.solo) if contrast]
    return [(row, "its solo control" if solo else reference.reference, reference) for row, reference, solo in pairs]
