"""About how long the runs of a sweep will take: from rounds on record, or from one that is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from protonorm.core.progress import steps
from protonorm.federation.rounds import Round
from protonorm.search.grid import Point
from protonorm.search.side_by_side import Job
from protonorm.search.sweeping import Sweep
from protonorm.session.running import run


class Estimate(NamedTuple):
    """How long runs take together."""

    seconds: float
    how: str  # it was estimated


class _Enough(Exception):
    """One round is enough."""


def estimate(sweep: Sweep, jobs: Sequence[Job], count: int, processes: int) -> Estimate:
    """Estimate how long runs take, `count` side by side in so many processes, by the seconds a round of each method."""
    waiting = {job.key: job.rounds for job in jobs}
    recorded = _recorded(sweep)
    left: dict[str, int] = {}  # rounds of each method
    points: dict[str, Point] = {}  # one of each method
    for point, _, experiment in sweep.grid.runs():
        if rounds := waiting.pop(experiment.key, 0):
            left[point.method] = left.get(point.method, 0) + rounds
            points.setdefault(point.method, point)
    unknown = [method for method in left if method not in recorded]
    timed = {method: timed_round(points[method]) / processes for method in steps(unknown, "one round of each method")}
    rounds_take = {method: seconds / count for method, seconds in recorded.items()} | timed
    seconds = sum(rounds * rounds_take[method] for method, rounds in left.items())
    ways = ["rounds of this sweep that are on record"] if len(unknown) < len(left) else []
    ways += [f"one round each of {', '.join(unknown)}, timed now"] if unknown else []
    return Estimate(seconds, " and ".join(ways))


def timed_round(point: Point) -> float:
    """Time one round of a point in one process, in a folder that is thrown away."""
    taken: list[float] = []

    def stop(round: Round) -> None:
        taken.append(round.seconds["round"])
        raise _Enough

    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        run(next(iter(point.experiments.values())), out=Path(folder), engine="serial", watch=stop)
    return taken[0]


def _recorded(sweep: Sweep) -> Mapping[str, float]:
    """Read how long a round of each method took, in the runs of this sweep that have begun; the middle one."""
    standings = sweep.standings()
    found: dict[str, list[float]] = {}
    for point, _, experiment in sweep.grid.runs():
        here = standings[experiment.key].run
        if here and here.seconds:
            found.setdefault(point.method, []).extend(here.seconds.values())
    return {method: median(taken) for method, taken in found.items()}
