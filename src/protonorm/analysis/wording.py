"""What a comparison's table must say beside its numbers, in sentences. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence

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
VERDICTS = (
    "better or worse: the whole interval lies above or below zero; not distinguishable: it holds zero, and more seeds "
    "may tell; practically equal: all of it is too near to zero to matter"
)
FEW = 5  # seeds below which the bootstrap's interval may be much too narrow (docs/statistics.md)


def how_chosen(table: Sequence[Row]) -> str:
    """Say how the rounds were chosen whose accuracies are reported."""
    methods = [row for row in table if row.headline and row.chosen_by]
    found = dict.fromkeys(way for row in methods for way in row.chosen_by.split(", "))
    if len(found) < 2:
        return "".join(CHOSEN[way] for way in found)
    named = {way: _listed([row.method for row in methods if way in row.chosen_by.split(", ")]) for way in found}
    return "; ".join(f"of {named[way]} {CHOSEN[way]}" for way in found)


def what_spread_is(table: Sequence[Row]) -> str:
    """Say what ± is, or that one seed has no interval; nothing if no round was evaluated."""
    counts = sorted({len(row.seeds) for row in table if row.headline and row.seeds})
    if not counts:
        return ""
    if counts == [1]:
        return "One seed: there is no interval, and nothing says whether a difference is chance."
    if any(share_a_seed(row.seeds) for row in table if row.headline):
        return "Some runs of a method share a seed: they are not independent, and there is no interval of their mean."
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"± is half of the 95 % interval of the mean over {several} seeds (Student's t)."


def why_bold(table: Sequence[Row]) -> str:
    """Say of the highest accuracy whether it can be told apart from the others; nothing for a single method."""
    top = next((row for row in table if row.leads), None)
    if top is None:
        return ""
    if top.stands_out:
        hint = f" With fewer than {FEW} seeds that is a hint." if 0 < len(top.seeds) < FEW else ""
        return f"Bold: the accuracy of {top.method} can be told apart from that of every other method.{hint}"
    reasons = dict.fromkeys(top.alike.values())
    if len(reasons) == 1:
        told = f"{_listed(list(top.alike))} ({next(iter(reasons))})"
    else:
        told = _listed([f"{name} ({why})" for name, why in top.alike.items()])
    return f"No accuracy is bold: that of {top.method} is the highest, but not distinguishable from that of {told}."


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


def _references(row: Row) -> list[tuple[str, Contrast]]:
    named = [(row.local.reference, row.local)] if row.local else []
    return named + ([("its solo control", row.solo)] if row.solo else [])


def _gain_line(method: str, reference: str, contrast: Contrast) -> str:
    if contrast.transfer is None:
        return f"{method} has no gain against {reference}: they differ in {contrast.mismatch}."
    return f"{method} against {reference}: {who_gains(contrast.transfer)}"


def _p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
