"""Tables of accuracies: ours, the printed ones, and the difference. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from protonorm.reproduction.cells import Place, Printed
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.tables import Table, TableEntry

HEADLINE = (
    "Test accuracy in per cent, pooled over clients, of the best round, under the headline rule of each method "
    "(nearest global prototype for ProtoNorm, FedProto and FedTGP; for the others logits, of the model as received "
    "where model parts are shared), mean ± standard deviation over seeds."
)
OTHER_RULES = (
    "Best round under that rule. local: nearest local prototype (Eq. 6). logits: the model's own answer after local "
    "training."
)


class Value(NamedTuple):
    """Our number in one place, in per cent, or why there is none."""

    mean: float | None = None
    text: str = ""
    note: str = ""  # what a reader should know besides


def cell_value(outcomes: Sequence[Outcome], rule: str | None = None) -> Value:
    """Condense the seeds of a cell under a rule; the headline if none is given."""
    for outcome in outcomes:
        if outcome.state == "damaged":
            return Value(text="damaged", note=outcome.damaged)
        if outcome.state == "diverged" and outcome.run and outcome.run.failure:
            return Value(text="-", note=f"diverged in round {outcome.run.failure.round} with seed {outcome.seed}")
    done = [outcome for outcome in outcomes if outcome.state == "finished" and outcome.run]
    found = [summary for one in done if one.run and (summary := one.summaries.get(rule or one.run.info.headline))]
    if not found:
        return Value(text="none", note="no accuracy under this rule") if done else _absent(outcomes)
    numbers = [100 * summary.best.pooled for summary in found]
    ours = Printed(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)
    note = share_of_seeds(len(numbers), len(outcomes))
    return Value(ours.mean, f"{ours} ({note})" if note else str(ours), note)


def share_of_seeds(found: int, asked: int) -> str:
    """Say how many of the seeds that were asked for a number comes from; nothing if from all."""
    return "" if found == asked else f"{found} of {asked} seeds"


def _absent(outcomes: Sequence[Outcome]) -> Value:
    """Say why there is no number: the first reason of all seeds that explains the most."""
    states = {outcome.state: outcome for outcome in reversed(outcomes)}
    if missing := states.get("missing"):
        return Value(text="no data", note=missing.missing)
    if refused := states.get("refused"):
        return Value(text="not run", note=refused.refused)
    if begun := states.get("begun"):
        return Value(text=begun.progress, note="begun, not finished")
    return Value(text="not run yet", note="not run yet") if outcomes else Value()


def values(findings: Findings, rule: str | None = None) -> dict[Place, Value]:
    """Condense every cell."""
    return {place: cell_value(findings.at(*place), rule) for place in findings.places}


def accuracy_tables(findings: Findings) -> list[Table]:
    """Make the table as printed, and a second one with other rules and the rows that the paper does not have."""
    tables = [_main(findings), _others(findings)]
    return [table for table in tables if table.rows]


def _main(findings: Findings) -> Table:
    found = values(findings)
    bold = _best(findings, found)
    rows = [
        (row, [_entry(findings, found, (row, column.place), bold) for column in findings.columns])
        for row in findings.rows
    ]
    beside = " Second lines: the printed number, and ours minus printed." if findings.profile.is_result else ""
    return _table(findings, findings.study.title, findings.study.corner, rows, HEADLINE + beside)


def _entry(findings: Findings, found: Mapping[Place, Value], place: Place, bold: set[Place]) -> TableEntry:
    ours = found.get(place, Value())
    printed = findings.study.paper.get(place)
    if not findings.profile.is_result or printed is None:
        return TableEntry(ours.text, "", place in bold)
    difference = ""
    if ours.mean is not None and printed.mean is not None:
        difference = f" ({ours.mean - printed.mean:+.2f})".replace("-", "−")
    return TableEntry(ours.text, f"{printed}{difference}", place in bold)


def _best(findings: Findings, found: Mapping[Place, Value]) -> set[Place]:
    """Find the largest of our numbers along each column, or along each row."""
    axis = 1 if findings.study.best == "column" else 0
    lines: dict[str, dict[Place, float]] = {}
    for place, ours in found.items():
        if ours.mean is not None and place[0] in findings.study.rows:
            lines.setdefault(place[axis], {})[place] = ours.mean
    return {max(line, key=lambda place: line[place]) for line in lines.values() if len(line) > 1}


def _others(findings: Findings) -> Table:
    study = findings.study
    rows = [
        (row if row in study.beside else f"{row}, {rule}", _under_rule(findings, row, rule))
        for row in [*findings.rows, *study.beside]
        for rule in _rules(findings, row)
    ]
    title = "The same runs under other rules" + (f", and {', '.join(study.beside)}" if study.beside else "")
    alone = " Local: every client trains alone." if "Local" in study.beside else ""
    return _table(findings, title, f"{study.corner}, rule", rows, OTHER_RULES + alone)


def _under_rule(findings: Findings, row: str, rule: str) -> list[TableEntry]:
    return [TableEntry(cell_value(findings.at(row, column.place), rule).text) for column in findings.columns]


def _rules(findings: Findings, row: str) -> list[str]:
    """List the rules to show of a row: all but the headline, which the first table has, or the headline alone."""
    run = next((one.run for one in findings.outcomes if one.cell.row == row and one.run), None)
    if run is None:
        return []
    if row in findings.study.beside:
        return [run.info.headline]
    return [rule for rule in run.info.rules if rule != run.info.headline]


def _table(
    findings: Findings, title: str, corner: str, rows: Sequence[tuple[str, Sequence[TableEntry]]], explanation: str
) -> Table:
    return Table(title, corner, [column.name for column in findings.columns], rows, findings.groups, explanation)
