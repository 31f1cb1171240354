"""Tables of accuracies beside the printed numbers, their leaders, and checks against the paper. Does not import torch.

Differences within noise are neither bold nor decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from protonorm.analysis.comparison import OPTIONAL, RULES
from protonorm.analysis.contrasts import not_distinguishable
from protonorm.analysis.settings import grouped
from protonorm.analysis.tables import CHOSEN, FEW
from protonorm.core.text import listed
from protonorm.runs.run import Run

from .cells import Place, Study, Table, TableEntry
from .findings import Findings, Value, cell_value, finished_runs, values
from .profiles import Profile

ONE_SEED = "One seed has no interval: nothing is bold."
TERMS = "More: docs/reproduce.md."


def accuracy_tables(findings: Findings) -> list[Table]:
    """Build the table as printed, and a second table with other rules and with rows that the paper does not have."""
    return [table for table in (_main(findings), _others(findings)) if table.rows]


def _main(findings: Findings) -> Table:
    study, numbers = findings.study, values(findings)
    highest = leaders(findings, numbers)
    bold = {leader.place for leader in highest if not leader.alike}
    rows = [
        (row, [_entry(findings, numbers.get(place, Value()), place, place in bold) for place in _places(findings, row)])
        for row in findings.rows
    ]
    accuracy = f"Test accuracy in per cent, pooled over clients, {_how_chosen(findings)}."
    sentences = [accuracy, _judged_by(findings), _about_seeds(findings), about_bold(findings, highest)]
    return _table(findings, study.title, study.corner, rows, sentences)


def _entry(findings: Findings, value: Value, place: Place, bold: bool) -> TableEntry:
    below, printed = "", findings.study.paper.get(place)
    if findings.profile.is_result and printed is not None:
        below = str(printed)
        if value.mean is not None and printed.mean is not None:
            below += f" ({value.mean - printed.mean:+.2f})".replace("-", "−")
    return TableEntry(value.text, below, bold, value.best, value.tests)


def _others(findings: Findings) -> Table:
    study, rows, rules = findings.study, [], dict[str, None]()
    for row in (*findings.rows, *study.beside):
        info = next(
            (outcome.run.info for outcome in findings.outcomes if outcome.cell.row == row and outcome.run), None
        )
        # all but the headline, which the first table has; of a row beside the table, the headline alone
        for rule in [rule for rule in info.rules if (rule == info.headline) == (row in study.beside)] if info else ():
            numbers = [cell_value(findings.at(*place), findings.protocol, rule) for place in _places(findings, row)]
            entries = [TableEntry(value.text, best=value.best, tests=value.tests) for value in numbers]
            rows.append((row if row in study.beside else f"{row}, {rule}", entries))
            rules[f"{rule} ({RULES[rule]})" if rule in RULES else rule] = None
    title = "The same runs under other rules" + (f", and {', '.join(study.beside)}" if study.beside else "")
    sentences = ["Rounds are those of the headline rule.", f"Rules: {'; '.join(rules)}.", _about_seeds(findings)]
    return _table(findings, title, f"{study.corner}, rule", rows, sentences)


def _table(
    findings: Findings,
    title: str,
    corner: str,
    rows: Sequence[tuple[str, Sequence[TableEntry]]],
    sentences: Sequence[str],
) -> Table:
    names, groups = [column.name for column in findings.columns], [column.group for column in findings.columns]
    found = {name for _, entries in rows for entry in entries for name in entry.tests}
    tests = [f"{name.capitalize()}: {meaning}." for name, meaning in OPTIONAL.items() if name in found]
    explanation = " ".join(filter(None, [f"Protocol {findings.protocol.name}.", *sentences, *tests, TERMS]))
    return Table(title, corner, names, rows, groups if any(groups) else [], explanation)


def _places(findings: Findings, row: str) -> list[Place]:
    return [(row, column.place) for column in findings.columns]


def _how_chosen(findings: Findings) -> str:
    """Describe the round of the accuracies; cells whose round was chosen otherwise than by the protocol are named."""
    cells = [
        (outcome.run.chosen.by, f"{outcome.where} (seed {outcome.seed})")
        for outcome in finished_runs(findings.outcomes)
        if outcome.run and outcome.run.chosen
    ]
    exceptions = {by: names for by, names in grouped(cells).items() if by != findings.protocol.by}
    deviating = [f"but of {'; '.join(names)} {CHOSEN[by]}" for by, names in exceptions.items()]
    return ", ".join([CHOSEN[findings.protocol.by], *deviating])


def _judged_by(findings: Findings) -> str:
    """Describe the rule of each row; in a column with several rules, a lead may come from the rule."""
    headlines = {outcome.cell.row: outcome.experiment.algorithm.headline for outcome in findings.outcomes}
    rules = grouped((headlines[row], row) for row in findings.rows)
    return f"Judged by {'; '.join(f'{RULES.get(rule, rule)}: {listed(rows)}' for rule, rows in rules.items())}."


def _about_seeds(findings: Findings) -> str:
    seeds, count = ", ".join(map(str, findings.seeds)), len(findings.seeds)
    if count < 2:
        return f"One seed ({seeds}): there is no ±." if seeds else ""
    return f"Mean over {count} seeds ({seeds}); ± is {findings.protocol.spread_is} over them."


class Leader(NamedTuple):
    """Highest number of a column or row."""

    line: str  # the column or row
    name: str  # row or column of the highest number
    place: Place
    alike: Mapping[str, str]  # rivals that it is not distinguishable from, with reasons


def leaders(findings: Findings, numbers: Mapping[Place, Value]) -> list[Leader]:
    """Find the highest of our numbers along each column, or along each row, where there are several."""
    axis = 1 if findings.study.best == "column" else 0
    means = {place: value.mean for place, value in numbers.items() if value.mean is not None}
    lines = grouped((place[axis], place) for place in means if place[0] in findings.study.rows)
    highest = []
    for line, places in lines.items():
        if len(places) > 1:
            top = max(places, key=means.__getitem__)
            groups = {place[1 - axis]: findings.finished(*place) for place in places}
            highest.append(Leader(line, top[1 - axis], top, not_distinguishable(top[1 - axis], groups)))
    return highest


def about_bold(findings: Findings, highest: Sequence[Leader]) -> str:
    """Explain bold numbers, and which of the highest are not bold and why; empty if no numbers are compared."""
    if not highest:
        return ""
    reasons = {why for leader in highest for why in leader.alike.values()}
    if reasons == {"one seed has no interval"} and all(leader.alike for leader in highest):
        return ONE_SEED
    alike = [
        f"{leader.line}: {leader.name}, not distinguishable from {_rivals(leader.alike)}"
        for leader in highest
        if leader.alike
    ]
    hint = f"; with fewer than {FEW} seeds a hint" if len(findings.seeds) < FEW else ""
    not_bold = f" The highest, but not bold: {'; '.join(alike)}." if alike else ""
    return f"Bold: the highest of its {findings.study.best}, distinguishable from all others there{hint}.{not_bold}"


def _rivals(rivals: Mapping[str, str]) -> str:
    by_reason = grouped((why, name) for name, why in rivals.items())
    return " and ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())


class Verdict(NamedTuple):
    """Verdict of one check."""

    passed: bool | None  # None if these runs do not decide it
    sentence: str
    leads: bool = False  # whether it is about the leading row


def can_check(study: Study, profile: Profile, seeds: int) -> bool:
    """Return whether a study's file states anything that `seeds` seeds can decide under a profile."""
    places = {cell.place for cell in study.cells}
    numbers = any(printed.mean is not None for place, printed in study.paper.items() if place in places)
    near = profile.name in study.tolerance and numbers
    return bool(study.columns) and (near or (seeds > 1 and leads_somebody(study, profile)))


def leads_somebody(study: Study, profile: Profile) -> bool:
    """Return whether a study's file states the leading row under a profile; one seed never decides it."""
    return study.leads is not None and profile.name in study.slack


def check(findings: Findings) -> list[Verdict]:
    """Check all finished cells of a study for which its file states a tolerance for the profile."""
    numbers = values(findings) if findings.study.columns else {}
    return [*_near(findings, numbers), *_leading(findings, numbers)]


def _near(findings: Findings, numbers: Mapping[Place, Value]) -> Iterator[Verdict]:
    """Check that numbers are near the printed numbers; '-' promises nothing.

    Outside the tolerance it is undecided if the interval over seeds overlaps the tolerance.
    """
    tolerance = findings.study.tolerance.get(findings.profile.name)
    for place, value in numbers.items():
        printed = findings.study.paper.get(place)
        if tolerance is None or printed is None or printed.mean is None:
            continue
        where = f"{findings.study.name}, {place[0]}, {place[1]}"
        if value.mean is None:
            if value.note:
                yield Verdict(False, f"{where}: {value.note}, printed {printed}.")
            continue
        best = f", best* {value.best}" if value.best else ""
        statement = f"{where}: {value.text}{best}, printed {printed}, tolerance {tolerance:g}"
        low, high = value.interval or (value.mean, value.mean)
        if abs(value.mean - printed.mean) <= tolerance:
            yield Verdict(True, f"{statement}.")
        elif value.interval and low <= printed.mean + tolerance and high >= printed.mean - tolerance:
            yield Verdict(None, f"{statement}; its 95 % interval, {low:.2f} to {high:.2f}, reaches into it.")
        else:
            yield Verdict(False, f"{statement}." if value.interval else f"{statement}; one seed has no interval.")


def _leading(findings: Findings, numbers: Mapping[Place, Value]) -> Iterator[Verdict]:
    """Check that the row that should lead, printed or not, is not far behind any row of the table."""
    study = findings.study
    leads, slack = study.leads, study.slack.get(findings.profile.name)
    if leads is None or slack is None:
        return
    for column in study.columns:
        places = {row: (row, column.place) for row in (*study.rows, leads)}
        means = {row: mean for row, place in places.items() if (mean := numbers.get(place, Value()).mean) is not None}
        if leads in means and len(means) > 1:
            best = max(means, key=means.__getitem__)
            behind = f"{means[best] - means[leads]:.2f} points behind the best ({best})"
            statement = f"{study.name}, {column.place}: {leads} is {'the highest' if best == leads else behind}"
            yield _lead({row: findings.finished(*places[row]) for row in means}, leads, slack, statement)


def _lead(groups: Mapping[str, list[Run]], leads: str, slack: float, statement: str) -> Verdict:
    """Judge whether a row is behind another by more than the slack, in points, beyond noise."""
    margin, own = slack / 100, groups[leads]
    rivals = [row for row in groups if row != leads]
    ahead = [row for row in rivals if not not_distinguishable(row, {row: groups[row], leads: own}, margin)]
    if ahead:
        return Verdict(
            False, f"{statement}, and more than the {slack:g} allowed behind {', '.join(ahead)}.", leads=True
        )
    # better than a negative margin: not further behind than the slack
    if unclear := not_distinguishable(leads, groups, -margin):
        reasons = "; ".join(f"{row}: {why}" for row, why in unclear.items())
        undecided = f"{statement}; whether it may be more than the {slack:g} allowed behind is open ({reasons})."
        return Verdict(None, undecided, leads=True)
    return Verdict(True, f"{statement}, and at most the {slack:g} allowed behind anybody.", leads=True)
