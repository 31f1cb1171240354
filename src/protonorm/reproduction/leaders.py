"""Which number of a column or row is the highest, and whether it can be told apart from the others. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protonorm.analysis.contrasts import not_distinguishable
from protonorm.analysis.wording import FEW
from protonorm.reproduction.cells import Place
from protonorm.reproduction.findings import Findings
from protonorm.reproduction.values import Value, finished_runs
from protonorm.runs.run import Run

ONE_SEED = "One seed has no interval: nothing is bold, and nothing says whether a difference is chance."
BOLD = (
    "Bold: the highest of its {line}, if it can be told apart from every other one there (95 % bootstrap interval of "
    "the pooled difference, over seeds and clients)."
)
FEW_SEEDS = f" With fewer than {FEW} seeds such an interval may be too narrow, and bold is a hint."


class Leader(NamedTuple):
    """The highest number of a column or row."""

    line: str  # the column or row
    name: str  # what the highest is there: a row or column
    place: Place
    alike: Mapping[str, str]  # those it cannot be told apart from, and why


def leaders(findings: Findings, found: Mapping[Place, Value]) -> list[Leader]:
    """Find the highest of our numbers along each column, or along each row, where there are several."""
    axis = 1 if findings.study.best == "column" else 0
    lines: dict[str, dict[Place, float]] = {}
    for place, ours in found.items():
        if ours.mean is not None and place[0] in findings.study.rows:
            lines.setdefault(place[axis], {})[place] = ours.mean
    return [_leader(findings, line, held, 1 - axis) for line, held in lines.items() if len(held) > 1]


def runs_at(findings: Findings, place: Place) -> list[Run]:
    """List the finished runs of a cell, one for each seed."""
    return [one.run for one in finished_runs(findings.at(*place)) if one.run]


def about_bold(findings: Findings, found: Sequence[Leader]) -> str:
    """Say what bold means, and which of the highest are not bold and why; nothing if no numbers are compared."""
    if not found:
        return ""
    reasons = {why for one in found for why in one.alike.values()}
    if reasons == {"one seed has no interval"} and all(one.alike for one in found):
        return ONE_SEED
    told = [f"{one.line}: {one.name}, not distinguishable from {_listed(one.alike)}" for one in found if one.alike]
    few = FEW_SEEDS if len({one.seed for one in findings.outcomes}) < FEW else ""
    not_bold = f" The highest, but not bold: {'; '.join(told)}." if told else ""
    return f"{BOLD.format(line=findings.study.best)}{few}{not_bold}"


def _leader(findings: Findings, line: str, held: Mapping[Place, float], axis: int) -> Leader:
    top = max(held, key=lambda place: held[place])
    groups = {place[axis]: runs_at(findings, place) for place in held}
    return Leader(line, top[axis], top, not_distinguishable(top[axis], groups))


def _listed(alike: Mapping[str, str]) -> str:
    """Name the others, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for name, why in alike.items():
        by_reason.setdefault(why, []).append(name)
    return " and ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
