"""What a comparison's table must say beside its numbers, in sentences. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protonorm.analysis.contrasts import Contrast
from protonorm.analysis.row import RULES, Row
from protonorm.analysis.statistics import share_a_seed
from protonorm.analysis.transfer import who_gains

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
NOT_RANKED = "Accuracies under different rules are not ranked."
FEW = 5  # seeds below which the bootstrap's interval may be much too narrow (docs/statistics.md)


def how_chosen(table: Sequence[Row]) -> str:
    """Say how the rounds were chosen whose accuracies are reported."""
    methods = [row for row in table if row.headline and row.chosen_by]
    found = dict.fromkeys(way for row in methods for way in row.chosen_by.split(", "))
    if len(found) < 2:
        return "".join(CHOSEN[way] for way in found)
    named = {way: listed([row.method for row in methods if way in row.chosen_by.split(", ")]) for way in found}
    return "; ".join(f"of {named[way]} {CHOSEN[way]}" for way in found)


def what_spread_is(table: Sequence[Row]) -> str:
    """Say how many seeds there are and what ± is, or why there is none; nothing if no round was evaluated."""
    heads = [row for row in table if row.headline and row.seeds]
    shared = [row for row in heads if share_a_seed(row.seeds)]
    single = [row for row in heads if len(row.seeds) == 1]
    sure = [row for row in heads if row not in shared and row not in single]
    if heads and len(single) == len(heads):
        return "One seed: there is no interval, and nothing says whether a difference is chance."
    return " ".join(filter(None, [_interval_of(sure), _without_interval(single), _sharing(shared)]))


def meaning_of_verdicts(found: Collection[str | None]) -> str:
    """Explain the verdicts that there are, and no others."""
    return "; ".join(f"{name}: {meaning}" for name, meaning in VERDICTS.items() if name in found)


def why_bold(table: Sequence[Row]) -> str:
    """Say what is bold and why, or why nothing is; nothing for a single method. No method that may be chance is named.

    Methods are ranked under one rule at a time.
    """
    heads = [row for row in table if row.headline and not row.is_majority]
    several = len({row.rule for row in heads}) > 1
    told = [_why_bold(row, f" under the rule {row.rule}" if several else "") for row in heads if row.leads]
    if several and told:
        told.append(NOT_RANKED)
    elif several:
        told = [f"No accuracy is bold: each method is judged under a rule of its own. {NOT_RANKED}"]
    return " ".join(told)


def who_gains_lines(table: Sequence[Row]) -> list[str]:
    """Say of each method who gains and who loses against Local and against its solo control, or why nobody knows."""
    return [_gain_line(row.method, reference, contrast) for row in table for reference, contrast in _references(row)]


def p_values(table: Sequence[Row]) -> str:
    """List the p-values of the sign-flip tests, corrected for being several; nothing below six seeds."""
    found = [
        f"{row.method} against {reference} {_p_value(contrast.transfer.p_holm)}"
        for row in table
        for reference, contrast in _references(row)
        if contrast.transfer and contrast.transfer.p_holm is not None
    ]
    return f"Sign-flip test over seeds, p corrected by Holm: {', '.join(found)}." if found else ""


def meaning_of_rules(table: Sequence[Row]) -> str:
    """Say what the rules of a table mean."""
    rules = sorted({row.rule for row in table} & set(RULES))
    return f"Rules: {'; '.join(f'{rule}, {RULES[rule]}' for rule in rules)}." if rules else ""


def is_hint(row: Row) -> str:
    """Say that few seeds make a difference a hint; nothing if there are enough."""
    return f" With fewer than {FEW} seeds that is a hint." if 0 < len(row.seeds) < FEW else ""


def rivals_of(row: Row) -> str:
    """List the methods that a row cannot be told apart from, with the reasons; one that all have is said once."""
    reasons = dict.fromkeys(row.alike.values())
    if len(reasons) == 1:
        return f"{listed(list(row.alike))} ({next(iter(reasons))})"
    return listed([f"{name} ({why})" for name, why in row.alike.items()])


def listed(names: Sequence[str]) -> str:
    """Join names with commas, and `and` before the last."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _interval_of(rows: Sequence[Row]) -> str:
    """Say what ± is, and over how many seeds; of each method, if they differ."""
    counts = list(dict.fromkeys(len(row.seeds) for row in rows))
    if not counts:
        return ""
    if len(counts) == 1:
        return f"± is half of the 95 % interval of the mean over {counts[0]} seeds (Student's t)."
    told = [f"{count} of {listed([row.method for row in rows if len(row.seeds) == count])}" for count in counts]
    return f"± is half of the 95 % interval of the mean over seeds (Student's t): {', '.join(told)}."


def _without_interval(rows: Sequence[Row]) -> str:
    names = [row.method for row in rows]
    return f"{listed(names)} {'has' if len(names) == 1 else 'have'} one seed, and no interval." if names else ""


def _sharing(rows: Sequence[Row]) -> str:
    """Say which methods have runs that share a seed, and how many runs."""
    told = [f"the {len(row.seeds)} runs of {row.method}" for row in rows]
    return f"Among {listed(told)} some share a seed: they have no interval, not being independent." if told else ""


def _why_bold(row: Row, where: str) -> str:
    if row.stands_out:
        return (
            f"Bold: the accuracy of {row.method} can be told apart from that of every other method{where}."
            f"{is_hint(row)}"
        )
    return f"No accuracy{where} is bold: that of {row.method} cannot be told apart from that of {rivals_of(row)}."


def _references(row: Row) -> list[tuple[str, Contrast]]:
    named = [(row.local.reference, row.local)] if row.local else []
    return named + ([("its solo control", row.solo)] if row.solo else [])


def _gain_line(method: str, reference: str, contrast: Contrast) -> str:
    if contrast.transfer is None:
        return f"{method} has no gain against {reference}: they differ in {contrast.mismatch}."
    return f"{method} against {reference}: {who_gains(contrast.transfer)}"


def _p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
