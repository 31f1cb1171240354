"""Tables of accuracies: ours, the best test round, the printed ones, and the difference. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protonorm.analysis.row import RULES
from protonorm.analysis.wording import CHOSEN
from protonorm.reproduction.cells import Place
from protonorm.reproduction.findings import Findings
from protonorm.reproduction.leaders import about_bold, leaders
from protonorm.reproduction.tables import Table, TableEntry
from protonorm.reproduction.values import Value, cell_value, finished_runs, values

OTHER_RULES = "In the same rounds, which are chosen under the headline rule."
BEST = "best*: the best test round, chosen by looking at what it reports, so that it is optimistic."


def accuracy_tables(findings: Findings) -> list[Table]:
    """Make the table as printed, and a second one with other rules and the rows that the paper does not have."""
    tables = [_main(findings), _others(findings)]
    return [table for table in tables if table.rows]


def how_chosen(findings: Findings) -> str:
    """Say in which round the accuracies are; cells whose round could not be chosen as the protocol says are named."""
    others: dict[str, list[str]] = {}
    for one in finished_runs(findings.outcomes):
        by = one.run.chosen.by if one.run and one.run.chosen else findings.protocol.by
        if by != findings.protocol.by:
            others.setdefault(by, []).append(f"{one.where} (seed {one.seed})")
    told = [f"but of {'; '.join(cells)} {CHOSEN[by]}" for by, cells in others.items()]
    return ", ".join([CHOSEN[findings.protocol.by], *told])


def judged_by(findings: Findings) -> str:
    """Say under which rule each row is judged; in a column with several the rule may be what wins."""
    rows: dict[str, list[str]] = {}
    for one in findings.outcomes:
        held = rows.setdefault(one.experiment.algorithm.headline, [])
        if one.cell.row in findings.rows and one.cell.row not in held:
            held.append(one.cell.row)
    told = [f"Judged by {_meaning(rule)}: {'; '.join(held)}." for rule, held in rows.items() if held]
    mixed = ["So numbers of one column may be of different rules."] if len(told) > 1 else []
    return " ".join([*told, *mixed])


def about_seeds(findings: Findings) -> str:
    """Say how many seeds the numbers come from, and what ± is."""
    seeds = sorted({one.seed for one in findings.outcomes})
    if len(seeds) < 2:
        return f"One seed ({', '.join(map(str, seeds))}): there is no ±." if seeds else ""
    return f"Mean over {len(seeds)} seeds ({', '.join(map(str, seeds))}); ± is {findings.protocol.spread_is} over them."


def _main(findings: Findings) -> Table:
    found = values(findings)
    highest = leaders(findings, found)
    bold = {one.place for one in highest if not one.alike}
    rows = [
        (row, [_entry(findings, found, place, bold=place in bold) for place in _places(findings, row)])
        for row in findings.rows
    ]
    told = [f"Test accuracy in per cent, pooled over clients, {how_chosen(findings)}.", judged_by(findings)]
    told += [about_seeds(findings)]
    told += [*_about_best(findings), about_bold(findings, highest), *_about_printed(findings)]
    return _table(findings, findings.study.title, findings.study.corner, rows, told)


def _about_best(findings: Findings) -> list[str]:
    return [] if findings.protocol.is_optimistic else [BEST]


def _about_printed(findings: Findings) -> list[str]:
    """Say what the printed numbers beside ours are."""
    if not findings.profile.is_result or not findings.study.paper:
        return []
    unlike = "" if findings.protocol.is_optimistic else " The authors' program prints its best test round: see best*."
    return [f"Below: the printed number, with the ± that is printed, and ours minus printed.{unlike}"]


def _entry(findings: Findings, found: Mapping[Place, Value], place: Place, *, bold: bool) -> TableEntry:
    ours, printed = found.get(place, Value()), findings.study.paper.get(place)
    if not findings.profile.is_result or printed is None:
        return TableEntry(ours.text, "", bold, ours.best)
    difference = ""
    if ours.mean is not None and printed.mean is not None:
        difference = f" ({ours.mean - printed.mean:+.2f})".replace("-", "−")
    return TableEntry(ours.text, f"{printed}{difference}", bold, ours.best)


def _others(findings: Findings) -> Table:
    study = findings.study
    rows = [
        (row if row in study.beside else f"{row}, {rule}", _under_rule(findings, row, rule))
        for row in [*findings.rows, *study.beside]
        for rule in _rules(findings, row)
    ]
    title = "The same runs under other rules" + (f", and {', '.join(study.beside)}" if study.beside else "")
    shown = dict.fromkeys(rule for row in [*findings.rows, *study.beside] for rule in _rules(findings, row))
    rules = f"Rules: {'; '.join(map(_meaning, shown))}."
    alone = ["Local: every client trains alone."] if "Local" in study.beside else []
    told = [OTHER_RULES, rules, *alone, about_seeds(findings), *_about_best(findings)]
    return _table(findings, title, f"{study.corner}, rule", rows, told)


def _under_rule(findings: Findings, row: str, rule: str) -> list[TableEntry]:
    found = [cell_value(findings.at(*place), findings.protocol, rule) for place in _places(findings, row)]
    return [TableEntry(ours.text, best=ours.best) for ours in found]


def _rules(findings: Findings, row: str) -> list[str]:
    """List the rules to show of a row: all but the headline, which the first table has, or the headline alone."""
    run = next((one.run for one in findings.outcomes if one.cell.row == row and one.run), None)
    if run is None:
        return []
    if row in findings.study.beside:
        return [run.info.headline]
    return [rule for rule in run.info.rules if rule != run.info.headline]


def _meaning(rule: str) -> str:
    return f"{rule} ({RULES[rule]})" if rule in RULES else rule


def _places(findings: Findings, row: str) -> list[Place]:
    return [(row, column.place) for column in findings.columns]


def _table(
    findings: Findings, title: str, corner: str, rows: Sequence[tuple[str, Sequence[TableEntry]]], told: Sequence[str]
) -> Table:
    names, protocol = [column.name for column in findings.columns], f"Protocol {findings.protocol.name}."
    return Table(title, corner, names, rows, findings.groups, " ".join(filter(None, [protocol, *told])))
