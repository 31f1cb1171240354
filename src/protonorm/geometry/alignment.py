"""Prototype alignment: put prototypes on the unit sphere so that their energy is least (Algorithm 1, and better ways).

Four methods: `exact` where the optimum has a closed form, `descent` everywhere, `paper` as published, `auto` to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from protonorm.geometry.points import Array, convert_back, read_points, unit
from protonorm.geometry.sphere import exact
from protonorm.geometry.sphere.algorithm1 import DEFAULT_SCHEDULE, Schedule, updates
from protonorm.geometry.sphere.descent import Settings, descend, evaluate, step_limit
from protonorm.geometry.sphere.energy import energy, exp_or_inf, exponent, forces, tangential
from protonorm.geometry.sphere.pairs import distance_range, nearest_distances
from protonorm.geometry.sphere.separation import jitter, separate, use_all_dimensions

__all__ = ["METHODS", "Alignment", "Schedule", "align", "energy", "forces", "tangential"]

METHODS = ("auto", "exact", "paper", "descent")
RACE = 100  # steps after which only the lowest descent goes on, or a quarter of those it may take
EQUAL = 1e-12  # relative difference below which two energies are the same


@dataclass(frozen=True, eq=False)
class Alignment(Generic[Array]):
    """Aligned prototypes and what is worth knowing about them."""

    prototypes: Array  # (K, d), unit rows
    steps: int  # updates made: 1 for a closed form, the authors' last t plus 1 for `paper`
    energy: float  # Eq. 10, or Eq. 8 for s > 0
    min_distance: float  # of two prototypes; 2, the diameter, when there is only one
    method: str  # the one used, never "auto"
    residual: float  # largest tangential force over the mean radial force: 0 at a stationary point
    distances: Array | None = None  # (steps + 1, 3) when traced: least, mean, greatest, at first and after each step


class Trajectory(NamedTuple):
    """The steps of a method so far."""

    points: Tensor  # (K, d), where it ended
    steps: int
    rows: list[Tensor]  # (3,) least, mean and greatest distance at the start and after every step, when traced


@torch.no_grad()
def align(
    vectors: Array,
    method: str = "auto",
    *,
    s: float = 0.0,
    schedule: Schedule = DEFAULT_SCHEDULE,
    tolerance: float = 1e-9,
    limit: int | None = None,
    trace: bool = False,
) -> Alignment[Array]:
    """Align vectors (K, d) of any length; the answer is of the same kind, type and device, computed in float64.

    `vectors` is an array or a tensor. `method` is `exact` where the optimum has a closed form, `descent` everywhere,
    `paper` as published, or `auto`, which takes `exact` if it can and `descent` if not. With `trace` the distances
    between prototypes are kept for each step.

    `s` is the Riesz exponent. `schedule` says how `paper` moves and stops; where it ends is also a second start of
    `descent`. `tolerance` is the residual at which `descent` stops, `limit` its greatest number of steps: 500 unless
    given, fewer for very many prototypes.

    ```python
    import numpy as np
    import protonorm as pn

    found = pn.align(np.random.default_rng(0).normal(size=(10, 64)))
    print(found.method, found.min_distance)  # exact, and √(2·10/9) = 1.49 between any two
    ```
    """
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule must be a Schedule, not {type(schedule).__name__}.")
    points = unit(read_points(vectors, "vectors"))
    settings = Settings(exponent(s), tolerance, step_limit(*points.shape) if limit is None else limit)
    method = choose(method, *points.shape)
    trajectory = run_method(points, method, schedule, settings, trace)
    return describe(trajectory, method, s, vectors, trace)


def choose(method: str, count: int, dimension: int) -> str:
    """Check the method, and name the one that `auto` stands for."""
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}; known: {', '.join(METHODS)}.")
    if dimension == 1 and count > 2:
        raise ValueError(f"Only two prototypes can be apart in one dimension, not {count}: d must be at least 2.")
    if method == "auto":
        return "exact" if exact.has_closed_form(count, dimension) else "descent"
    return method


def check_solvable(method: str, count: int, dimension: int) -> None:
    """Refuse a method that cannot align K prototypes in d dimensions."""
    if choose(method, count, dimension) == "exact":
        exact.require_closed_form(count, dimension)


def run_method(points: Tensor, method: str, schedule: Schedule, settings: Settings, trace: bool) -> Trajectory:
    """Move unit (or zero) points with a method."""
    if len(points) == 1:
        return new_trajectory(separate(points), trace)
    if method == "exact":
        return follow(new_trajectory(points, trace), [exact.solve(points)], trace)
    start = new_trajectory(separate(points), trace)
    if method == "paper":
        return follow(start, updates(start.points, settings.s, schedule), trace)
    return descend_from_several_starts(start, schedule, settings, trace)


def new_trajectory(points: Tensor, trace: bool) -> Trajectory:
    """Begin a trajectory, without any step."""
    return Trajectory(points, 0, [distance_range(points)] if trace else [])


def descend_from_several_starts(start: Trajectory, schedule: Schedule, settings: Settings, trace: bool) -> Trajectory:
    """Descend from several starts for a while, then go on with the lowest descent alone."""
    lap = min(RACE, 1 + settings.limit // 4)
    begun = [(follow(one, islice(path, lap), trace), path) for one, path in starts(start, schedule, settings, trace)]
    levels = [evaluate(one.points, settings.s).level for one, _ in begun]
    margin = EQUAL * max(1.0, abs(min(levels)))
    lowest, path = next(pair for pair, level in zip(begun, levels, strict=True) if level <= min(levels) + margin)
    begun.clear()  # and with it the memory of the other descents
    return follow(lowest, path, trace)


def starts(
    start: Trajectory, schedule: Schedule, settings: Settings, trace: bool
) -> Iterator[tuple[Trajectory, Iterator[Tensor]]]:
    """Start a descent from the prototypes, from beside them if no force acts there, and from where Algorithm 1 ends."""
    yield start, descend(use_all_dimensions(start.points), settings)
    if evaluate(start.points, settings.s).residual <= settings.tolerance:
        yield start, descend(jitter(start.points), settings)
    with suppress(ValueError):  # a force that overflows Algorithm 1 only costs this start
        end = follow(start, updates(start.points, settings.s, schedule), trace)
        yield end, descend(use_all_dimensions(end.points), settings)


def follow(trajectory: Trajectory, path: Iterable[Tensor], trace: bool) -> Trajectory:
    """Extend a trajectory by the steps of a path of points (K, d)."""
    points, steps, rows = trajectory.points, trajectory.steps, list(trajectory.rows)
    for points in path:
        steps += 1
        rows += [distance_range(points)] if trace else []
    return Trajectory(points, steps, rows)


def describe(end: Trajectory, method: str, s: float, like: Array, trace: bool) -> Alignment[Array]:
    """Measure the points at the end of a trajectory."""
    place = evaluate(end.points, s)
    return Alignment(
        prototypes=convert_back(end.points, like),
        steps=end.steps,
        energy=place.level if s == 0 else exp_or_inf(place.level),
        min_distance=min(2.0, float(nearest_distances(end.points).min())),
        method=method,
        residual=place.residual,
        distances=convert_back(torch.stack(end.rows), like) if trace else None,
    )
