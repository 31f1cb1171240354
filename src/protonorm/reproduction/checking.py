"""Compare what was found with what the paper says. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from protonorm.reproduction.accuracy import Value, values
from protonorm.reproduction.cells import Place
from protonorm.reproduction.findings import Findings
from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.study import Study


class Verdict(NamedTuple):
    """One thing that was checked."""

    passed: bool
    sentence: str


def can_check(study: Study, profile: Profile) -> bool:
    """Tell whether a study's file states anything that can be checked under a profile."""
    places = {cell.place for cell in study.cells}
    numbers = any(one.mean is not None for place, one in study.paper.items() if place in places)
    near = profile.name in study.tolerance and numbers
    return bool(study.columns) and (near or (study.leads is not None and profile.name in study.slack))


def check(findings: Findings) -> list[Verdict]:
    """Check all finished cells of a study as far as its file states a tolerance for the profile."""
    found = values(findings) if findings.study.columns else {}
    return [*_near(findings, found), *_leading(findings, found)]


def _near(findings: Findings, found: Mapping[Place, Value]) -> Iterator[Verdict]:
    """Check that numbers are near the printed ones; '-' promises nothing."""
    tolerance = findings.study.tolerance.get(findings.profile.name)
    for place, ours in found.items():
        printed = findings.study.paper.get(place)
        if tolerance is None or printed is None or printed.mean is None:
            continue
        where = f"{findings.study.name}, {place[0]}, {place[1]}"
        if ours.mean is not None:
            near = abs(ours.mean - printed.mean) <= tolerance
            yield Verdict(near, f"{where}: {ours.text}, printed {printed}, tolerance {tolerance:g}.")
        elif ours.text == "-":
            yield Verdict(False, f"{where}: {ours.note}, printed {printed}.")


def _leading(findings: Findings, found: Mapping[Place, Value]) -> Iterator[Verdict]:
    """Check that the row that should lead, printed or beside the table, is not far behind the best of the table."""
    study = findings.study
    leads, slack = study.leads, study.slack.get(findings.profile.name)
    if leads is None or slack is None:
        return
    for column in study.columns:
        rows = {row: found.get((row, column.place), Value()).mean for row in (*study.rows, leads)}
        held = {row: mean for row, mean in rows.items() if mean is not None}
        if leads not in held or len(held) < 2:
            continue
        best = max(held, key=lambda row: held[row])
        behind = held[best] - held[leads]
        where = f"{study.name}, {column.place}"
        yield Verdict(
            behind <= slack, f"{where}: {leads} is {behind:.2f} points behind the best ({best}), {slack:g} allowed."
        )
