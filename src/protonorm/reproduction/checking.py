"""Compare what was found with what the paper says; what is within noise is not decided. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from protonorm.analysis.contrasts import not_distinguishable
from protonorm.reproduction.cells import Place
from protonorm.reproduction.findings import Findings
from protonorm.reproduction.leaders import runs_at
from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.study import Study
from protonorm.reproduction.values import Value, values
from protonorm.runs.run import Run


class Verdict(NamedTuple):
    """One thing that was checked."""

    passed: bool | None  # None if these runs do not tell
    sentence: str
    leads: bool = False  # whether it is about who leads


def can_check(study: Study, profile: Profile, seeds: int) -> bool:
    """Tell whether a study's file states anything that so many seeds can tell under a profile."""
    places = {cell.place for cell in study.cells}
    numbers = any(one.mean is not None for place, one in study.paper.items() if place in places)
    near = profile.name in study.tolerance and numbers
    return bool(study.columns) and (near or (seeds > 1 and leads_somebody(study, profile)))


def leads_somebody(study: Study, profile: Profile) -> bool:
    """Tell whether a study's file states who should lead under a profile; one seed never tells."""
    return study.leads is not None and profile.name in study.slack


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
            best = f", best* {ours.best}" if ours.best else ""
            told = f"{where}: {ours.text}{best}, printed {printed}, tolerance {tolerance:g}"
            yield _distance(ours.mean, ours, printed.mean, tolerance, told)
        elif ours.text == "-":
            yield Verdict(False, f"{where}: {ours.note}, printed {printed}.")


def _distance(mean: float, ours: Value, printed: float, tolerance: float, told: str) -> Verdict:
    """Judge the distance; outside the tolerance is not decided if the interval over seeds reaches into it."""
    if abs(mean - printed) <= tolerance:
        return Verdict(True, f"{told}.")
    if ours.interval and ours.interval.low <= printed + tolerance and ours.interval.high >= printed - tolerance:
        low, high = ours.interval
        return Verdict(None, f"{told}; its 95 % interval, {low:.2f} to {high:.2f}, reaches into it.")
    return Verdict(False, f"{told}." if ours.interval else f"{told}; one seed has no interval.")


def _leading(findings: Findings, found: Mapping[Place, Value]) -> Iterator[Verdict]:
    """Check that the row that should lead, printed or beside the table, is not far behind anybody in the table."""
    study = findings.study
    leads, slack = study.leads, study.slack.get(findings.profile.name)
    if leads is None or slack is None:
        return
    for column in study.columns:
        places = {row: (row, column.place) for row in (*study.rows, leads)}
        held = {row: mean for row, place in places.items() if (mean := found.get(place, Value()).mean) is not None}
        if leads in held and len(held) > 1:
            best = max(held, key=lambda row: held[row])
            behind = f"{held[best] - held[leads]:.2f} points behind the best ({best})"
            told = f"{study.name}, {column.place}: {leads} is {'the highest' if best == leads else behind}"
            yield _lead({row: runs_at(findings, places[row]) for row in held}, leads, slack, told)


def _lead(groups: Mapping[str, list[Run]], leads: str, slack: float, told: str) -> Verdict:
    """Judge whether a row is behind another one by more than the slack, in points, beyond noise."""
    margin, own = slack / 100, groups[leads]
    others = [row for row in groups if row != leads]
    ahead = [row for row in others if not not_distinguishable(row, {row: groups[row], leads: own}, margin)]
    if ahead:
        return Verdict(False, f"{told}, and more than the {slack:g} allowed behind {', '.join(ahead)}.", leads=True)
    # better than a negative margin: whatever the difference is, it is not further behind than the slack
    if unclear := not_distinguishable(leads, groups, -margin):
        reasons = "; ".join(f"{row}: {why}" for row, why in unclear.items())
        open_yet = f"{told}; whether it may be more than the {slack:g} allowed behind is open ({reasons})."
        return Verdict(None, open_yet, leads=True)
    return Verdict(True, f"{told}, and at most the {slack:g} allowed behind anybody.", leads=True)
