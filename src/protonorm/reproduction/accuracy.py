"""Tables of accuracies: ours, the printed ones, and the difference. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from protonorm.reproduction.cells import Place, Printed
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.table import Entry, Table

HEADLINE = (
    "Test accuracy in per cent, pooled over clients, of the best round, under the headline rule of each method "
    "(nearest global prototype for ProtoNorm, FedProto and FedTGP; for the others logits, of the model as received "
    "where model parts are shared), mean ± standard deviation over seeds."
)
NOT_RUN = "not run yet"


class Value(NamedTuple):
    """Our number in one place, in per cent, or why there is none."""

    mean: float | None
    std: float | None
    text: str
    note: str = ""  # what the text leaves out
    complete: bool = False  # all seeds are finished


def value(outcomes: Sequence[Outcome], rule: str | None = None) -> Value:
    """Condense the seeds of a cell under a rule; the headline if none is given."""
    if not outcomes:
        return Value(None, None, "", "")
    for outcome in outcomes:
        if outcome.damaged:
            return Value(None, None, "damaged", outcome.damaged)
        if outcome.state == "diverged" and outcome.run and outcome.run.failure:
            return Value(None, None, "-", f"diverged in round {outcome.run.failure['round']} with seed {outcome.seed}")
    done = [outcome for outcome in outcomes if outcome.state == "finished" and outcome.run]
    found = [summary for one in done if one.run and (summary := one.run.summary(rule_of(one, rule)))]
    if not found:
        return Value(None, None, "none", "no accuracy under this rule") if done else _absent(outcomes)
    numbers = [100 * one["best"]["pooled"] for one in found]
    std = stdev(numbers) if len(numbers) > 1 else None
    note = "" if len(numbers) == len(outcomes) else f"{len(numbers)} of {len(outcomes)} seeds"
    return Value(fmean(numbers), std, str(Printed(fmean(numbers), std)), note, not note)


def rule_of(outcome: Outcome, rule: str | None) -> str | None:
    """Let a rule that a method does not have pass as none that is known."""
    return rule if rule is None or (outcome.run and rule in outcome.run.about["rules"]) else "-"


def _absent(outcomes: Sequence[Outcome]) -> Value:
    missing = next((one.missing for one in outcomes if one.state == "missing"), "")
    if missing:
        return Value(None, None, "no data", missing)
    refused = next((one.refused for one in outcomes if one.state == "refused"), "")
    if refused:
        return Value(None, None, "not run", refused)
    begun = next((one.run for one in outcomes if one.state == "begun"), None)
    if begun:
        return Value(None, None, f"{len(begun.history)} of {begun.experiment['rounds']} rounds", "begun, not finished")
    return Value(None, None, NOT_RUN, NOT_RUN)


def values(findings: Findings, rule: str | None = None) -> dict[Place, Value]:
    """Condense every cell."""
    places = dict.fromkeys((cell.row, cell.column) for cell in findings.study.cells)
    return {place: value(findings.at(*place), rule) for place in places}


def accuracy_tables(findings: Findings) -> list[Table]:
    """Make the table as printed, and a second one with other rules and the rows that the paper does not have."""
    tables = [_main(findings), _others(findings)]
    return [table for table in tables if table.rows]


def _main(findings: Findings) -> Table:
    study, found = findings.study, values(findings)
    bold = _best(findings, found)
    rows = [
        (row, [_entry(findings, found, (row, column.place), bold) for column in findings.columns])
        for row in findings.rows
    ]
    beside = " Second lines: the printed number, and ours minus printed." if findings.profile.beside else ""
    return Table(
        study.title,
        study.corner,
        [column.name for column in findings.columns],
        rows,
        [column.group for column in findings.columns] if any(column.group for column in findings.columns) else (),
        HEADLINE + beside,
    )


def _entry(findings: Findings, found: dict[Place, Value], place: Place, bold: set[Place]) -> Entry:
    ours = found.get(place, Value(None, None, ""))
    printed = findings.study.paper.get(place)
    if not findings.profile.beside or printed is None:
        return Entry(ours.text, "", place in bold)
    difference = ""
    if ours.mean is not None and printed.mean is not None:
        difference = f" ({ours.mean - printed.mean:+.2f})".replace("-", "−")
    return Entry(ours.text, f"{printed}{difference}", place in bold)


def _best(findings: Findings, found: dict[Place, Value]) -> set[Place]:
    """Find the largest of our numbers along each column, or along each row."""
    axis = 1 if findings.study.best == "column" else 0
    lines: dict[str, dict[Place, float]] = {}
    for place, one in found.items():
        if one.mean is not None and place[0] in findings.study.rows:
            lines.setdefault(place[axis], {})[place] = one.mean
    return {max(line, key=lambda place: line[place]) for line in lines.values() if len(line) > 1}


def _others(findings: Findings) -> Table:
    study = findings.study
    rows = []
    for row in [*findings.rows, *study.beside]:
        for rule in _rules(findings, row):
            headline = "" if row in study.beside else rule
            found = [value(findings.at(row, column.place), rule).text for column in findings.columns]
            rows.append((f"{row}, {headline}" if headline else row, [Entry(text) for text in found]))
    return Table(
        "The same runs under other rules" + (f", and {', '.join(study.beside)}" if study.beside else ""),
        f"{study.corner}, rule",
        [column.name for column in findings.columns],
        rows,
        [column.group for column in findings.columns] if any(column.group for column in findings.columns) else (),
        "Best round under that rule. local: nearest local prototype (Eq. 6). logits: the model's own answer after "
        "local training." + (" Local: every client trains alone." if "Local" in study.beside else ""),
    )


def _rules(findings: Findings, row: str) -> list[str]:
    """Name the rules to show of a row: all but the headline, which the first table has, or the headline alone."""
    run = next((one.run for one in findings.outcomes if one.cell.row == row and one.run), None)
    if run is None:
        return []
    headline = run.about["headline"]
    if row in findings.study.beside:
        return [headline]
    return [rule for rule in run.about["rules"] if rule != headline]
