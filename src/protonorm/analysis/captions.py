"""The caption of a comparison's table, made of what stands in it, in lines of plain text. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence

from protonorm.analysis.row import COLUMNS, Row
from protonorm.analysis.transfer import Transfer
from protonorm.analysis.wording import (
    FEW,
    OPTIMISTIC,
    how_chosen,
    meaning_of_rules,
    meaning_of_verdicts,
    p_values,
    what_spread_is,
    who_gains_lines,
    why_bold,
)

MEANINGS = {  # of the columns beside `accuracy`, which needs more words
    "mean": "{}: mean over clients, in that round",
    "worst": "{}: mean over the worst tenth of the clients, in that round",
    "best": "{}: the best test round",
    "last": "{}: the last round",
    "own_best": "{}: the mean of each client in its own best test round",
}


def caption(rows: Sequence[Row], shown: Sequence[str], *, gains: bool = False, tail: bool = False) -> list[str]:
    """Say what the numbers tell, then explain the columns shown, then what must be said of single methods.

    `gains` says that gains are shown, `tail` that those of the worst tenth of the clients are.
    """
    controls = {row.solo.reference for row in rows if row.solo}  # how they do against Local is in the table
    told = [why_bold(rows), *who_gains_lines([row for row in rows if row.method not in controls]), p_values(rows)]
    told += [about_accuracy(rows, shown), about_gains(rows, tail=tail) if gains else "", meaning_of_rules(rows)]
    told += sorted({f"{row.method} {row.note}." for row in rows if row.note})
    return [line for line in told if line]


def about_accuracy(rows: Sequence[Row], shown: Sequence[str]) -> str:
    """Explain the columns of accuracies: how their round was chosen, how many seeds they are of, what ± is."""
    first = f"Accuracy: test accuracy in per cent, pooled over clients, {how_chosen(rows) or 'in no round yet'}."
    others = [MEANINGS[name].format(COLUMNS[name][0].capitalize()) for name in shown if name in MEANINGS]
    beside = f"{'; '.join(others)}." if others else ""
    starred = f"{OPTIMISTIC}." if any(COLUMNS[name][0].endswith("*") for name in shown) else ""
    levels = any(row.is_majority for row in rows)
    majority = "Majority: guessing each client's most frequent class." if levels else ""
    return " ".join(filter(None, [first, beside, starred, what_spread_is(rows), majority]))


def about_gains(rows: Sequence[Row], *, tail: bool) -> str:
    """Explain gains, and the verdicts that there are."""
    found = [one.transfer for row in rows for one in (row.local, row.solo) if one and one.transfer]
    solo = (
        " Local: every client trains alone, so that a gain on it also counts what the method's loss brings. Solo: the "
        "same method, every client federating with itself alone; a gain on it is what the exchange brought."
    )
    judged = [one for one in found if one.verdict]
    interval = "; in brackets its 95 % interval (bootstrap over seeds and clients)" if judged else ""
    verdicts = f" Verdicts: {meaning_of_verdicts([one.verdict for one in judged])}." if judged else ""
    return (
        "Gain: mean over clients, in points, of a client's accuracy minus that of the same client in the reference, "
        f"with the same seed, samples and network, each under its own headline rule{interval}. Lose: share of the "
        f"clients that lose{'; worst 10 %: the mean gain of the tenth that gains least' if tail else ''}."
        f"{solo if any(row.solo for row in rows) else ''}{verdicts}{_narrow(judged)}"
    )


def _narrow(judged: Sequence[Transfer]) -> str:
    few = judged and min(one.seeds for one in judged) < FEW
    return f" With fewer than {FEW} seeds the brackets may be too narrow." if few else ""
