"""Tables of accuracies beside the printed numbers, their leaders, and checks against the paper. Does not import torch.

Differences within noise are neither bold nor decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from protonorm.analysis.comparison import RULES
from protonorm.analysis.contrasts import not_distinguishable
from protonorm.analysis.tables import CHOSEN, FEW
from protonorm.runs.run import Run

from .cells import Place, Study, Table, TableEntry
from .findings import Findings, Value, cell_value, finished_runs, values
from .profiles import Profile

OTHER_RULES = "In the same rounds, which are chosen under the headline rule."
BEST = "best*: the best test round, chosen by looking at what it reports, so that it is optimistic."
AUTHORS_BEST = "The authors' program prints its best test round: see best*."
ONE_SEED = "One seed has no interval: nothing is bold, and nothing says whether a difference is chance."
BOLD = (
    "Bold: the highest of its {line}, if it can be told apart from every other one there (95 % bootstrap interval of "
    "the pooled difference, over seeds and clients)."
)
FEW_SEEDS = f" With fewer than {FEW} seeds such an interval may be too narrow, and bold is a hint."


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
    sentences = [f"Test accuracy in per cent, pooled over clients, {_how_chosen(findings)}.", _judged_by(findings)]
    sentences += [_about_seeds(findings), about_bold(findings, highest)]
    if findings.profile.is_result and study.paper:
        sentences.append("Below: the printed number, with the ± that is printed, and ours minus printed.")
        sentences += [] if findings.protocol.is_optimistic else [AUTHORS_BEST]
    return _table(findings, study.title, study.corner, rows, sentences)


def _entry(findings: Findings, ours: Value, place: Place, bold: bool) -> TableEntry:
    below, printed = "", findings.study.paper.get(place)
    if findings.profile.is_result and printed is not None:
        below = str(printed)
        if ours.mean is not None and printed.mean is not None:
            below += f" ({ours.mean - printed.mean:+.2f})".replace("-", "−")
    return TableEntry(ours.text, below, bold, ours.best)


def _others(findings: Findings) -> Table:
    study = findings.study
    pairs = [(row, rule) for row in (*findings.rows, *study.beside) for rule in _rules(findings, row)]
    rows = []
    for row, rule in pairs:
        numbers = [cell_value(findings.at(*place), findings.protocol, rule) for place in _places(findings, row)]
        entries = [TableEntry(ours.text, best=ours.best) for ours in numbers]
        rows.append((row if row in study.beside else f"{row}, {rule}", entries))
    title = "The same runs under other rules" + (f", and {', '.join(study.beside)}" if study.beside else "")
    rules = f"Rules: {'; '.join(map(_meaning, dict.fromkeys(rule for _, rule in pairs)))}."
    alone = "Local: every client trains alone." if "Local" in study.beside else ""
    return _table(findings, title, f"{study.corner}, rule", rows, [OTHER_RULES, rules, alone, _about_seeds(findings)])


def _table(
    findings: Findings,
    title: str,
    corner: str,
    rows: Sequence[tuple[str, Sequence[TableEntry]]],
    sentences: Sequence[str],
) -> Table:
    groups = [column.group for column in findings.columns]
    explanation = " ".join(filter(None, [f"Protocol {findings.protocol.name}.", *sentences]))
    names = [column.name for column in findings.columns]
    return Table(title, corner, names, rows, groups if any(groups) else [], explanation)


def _rules(findings: Findings, row: str) -> list[str]:
    """List the rules to show of a row: all but the headline, which the first table has, or the headline alone."""
    info = next((one.run.info for one in findings.outcomes if one.cell.row == row and one.run), None)
    if info is None:
        return []
    return [rule for rule in info.rules if (rule == info.headline) == (row in findings.study.beside)]


def _places(findings: Findings, row: str) -> list[Place]:
    return [(row, column.place) for column in findings.columns]


def _meaning(rule: str) -> str:
    return f"{rule} ({RULES[rule]})" if rule in RULES else rule


def _how_chosen(findings: Findings) -> str:
    """Describe the round of the accuracies; cells whose round was chosen otherwise than by the protocol are named."""
    usual, others = findings.protocol.by, dict[str, list[str]]()
    for one in finished_runs(findings.outcomes):
        if one.run and one.run.chosen and one.run.chosen.by != usual:
            others.setdefault(one.run.chosen.by, []).append(f"{one.where} (seed {one.seed})")
    return ", ".join([CHOSEN[usual], *(f"but of {'; '.join(cells)} {CHOSEN[by]}" for by, cells in others.items())])


def _judged_by(findings: Findings) -> str:
    """Describe the rule of each row; in a column with several rules, a lead may come from the rule."""
    rows: dict[str, dict[str, None]] = {}
    for one in findings.outcomes:
        if one.cell.row in findings.rows:
            rows.setdefault(one.experiment.algorithm.headline, {})[one.cell.row] = None
    sentences = [f"Judged by {_meaning(rule)}: {'; '.join(judged)}." for rule, judged in rows.items()]
    mixed = ["So numbers of one column may be of different rules."] if len(sentences) > 1 else []
    return " ".join([*sentences, *mixed])


def _about_seeds(findings: Findings) -> str:
    """Describe the number of seeds, the meaning of ±, and that of best*."""
    seeds, count = ", ".join(map(str, findings.seeds)), len(findings.seeds)
    about = f"Mean over {count} seeds ({seeds}); ± is {findings.protocol.spread_is} over them."
    if count < 2:
        about = f"One seed ({seeds}): there is no ±." if seeds else ""
    return " ".join(filter(None, [about, "" if findings.protocol.is_optimistic else BEST]))


class Leader(NamedTuple):
    """Highest number of a column or row."""

    line: str  # the column or row
    name: str  # row or column of the highest number
    place: Place
    alike: Mapping[str, str]  # rivals that it is not distinguishable from, with reasons


def leaders(findings: Findings, numbers: Mapping[Place, Value]) -> list[Leader]:
    """Find the highest of our numbers along each column, or along each row, where there are several."""
    axis = 1 if findings.study.best == "column" else 0
    lines: dict[str, dict[Place, float]] = {}
    for place, ours in numbers.items():
        if ours.mean is not None and place[0] in findings.study.rows:
            lines.setdefault(place[axis], {})[place] = ours.mean
    highest = []
    for line, means in lines.items():
        if len(means) > 1:
            top = max(means, key=means.__getitem__)
            groups = {place[1 - axis]: findings.finished(*place) for place in means}
            highest.append(Leader(line, top[1 - axis], top, not_distinguishable(top[1 - axis], groups)))
    return highest


def about_bold(findings: Findings, highest: Sequence[Leader]) -> str:
    """Explain bold numbers, and which of the highest are not bold and why; empty if no numbers are compared."""
    if not highest:
        return ""
    reasons = {why for leader in highest for why in leader.alike.values()}
    if reasons == {"one seed has no interval"} and all(leader.alike for leader in highest):
        return ONE_SEED
    alike = [f"{one.line}: {one.name}, not distinguishable from {_listed(one.alike)}" for one in highest if one.alike]
    few = FEW_SEEDS if len(findings.seeds) < FEW else ""
    not_bold = f" The highest, but not bold: {'; '.join(alike)}." if alike else ""
    return f"{BOLD.format(line=findings.study.best)}{few}{not_bold}"


def _listed(alike: Mapping[str, str]) -> str:
    """List the names grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in alike.items():
        by_reason.setdefault(why, []).append(name)
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
    for place, ours in numbers.items():
        printed = findings.study.paper.get(place)
        if tolerance is None or printed is None or printed.mean is None:
            continue
        where = f"{findings.study.name}, {place[0]}, {place[1]}"
        if ours.mean is None:
            if ours.note:
                yield Verdict(False, f"{where}: {ours.note}, printed {printed}.")
            continue
        best = f", best* {ours.best}" if ours.best else ""
        about = f"{where}: {ours.text}{best}, printed {printed}, tolerance {tolerance:g}"
        low, high = ours.interval or (ours.mean, ours.mean)
        if abs(ours.mean - printed.mean) <= tolerance:
            yield Verdict(True, f"{about}.")
        elif ours.interval and low <= printed.mean + tolerance and high >= printed.mean - tolerance:
            yield Verdict(None, f"{about}; its 95 % interval, {low:.2f} to {high:.2f}, reaches into it.")
        else:
            yield Verdict(False, f"{about}." if ours.interval else f"{about}; one seed has no interval.")


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
            about = f"{study.name}, {column.place}: {leads} is {'the highest' if best == leads else behind}"
            yield _lead({row: findings.finished(*places[row]) for row in means}, leads, slack, about)


def _lead(groups: Mapping[str, list[Run]], leads: str, slack: float, about: str) -> Verdict:
    """Judge whether a row is behind another by more than the slack, in points, beyond noise."""
    margin, own = slack / 100, groups[leads]
    others = [row for row in groups if row != leads]
    ahead = [row for row in others if not not_distinguishable(row, {row: groups[row], leads: own}, margin)]
    if ahead:
        return Verdict(False, f"{about}, and more than the {slack:g} allowed behind {', '.join(ahead)}.", leads=True)
    # better than a negative margin: not further behind than the slack
    if unclear := not_distinguishable(leads, groups, -margin):
        reasons = "; ".join(f"{row}: {why}" for row, why in unclear.items())
        undecided = f"{about}; whether it may be more than the {slack:g} allowed behind is open ({reasons})."
        return Verdict(None, undecided, leads=True)
    return Verdict(True, f"{about}, and at most the {slack:g} allowed behind anybody.", leads=True)
