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

from protonorm.geometry import exact, paper
from protonorm.geometry.descent import Settings, affordable, descend, look
from protonorm.geometry.energy import energy, exponent, forces, grow, tangential
from protonorm.geometry.pairs import closest, pair_distances
from protonorm.geometry.paper import Schedule
from protonorm.geometry.points import Array, give_back, take, unit
from protonorm.geometry.separation import lift, separate, shake

__all__ = ["METHODS", "Alignment", "align", "energy", "forces", "tangential"]

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
    distances: Array | None = None  # (steps + 1, K(K−1)/2) when traced


class Way(NamedTuple):
    """Where a method went."""

    points: Tensor  # (K, d), where it ended
    steps: int
    rows: list[Tensor]  # distances at the start and after every step, when traced


@torch.no_grad()
def align(
    vectors: Array,
    method: str = "auto",
    *,
    s: float = 0.0,
    eta: float = 0.1,
    mu: float = 0.9,
    decay: float = 0.95,
    decay_every: int = 10,
    first_decay: int = 1,
    steps: int = 500,
    epsilon: float = 1e-4,
    patience: int = 10,
    stop: str = "change",
    tolerance: float = 1e-9,
    limit: int | None = None,
    trace: bool = False,
) -> Alignment[Array]:
    """Align vectors (K, d) of any length; the answer is of the same kind, type and device, computed in float64.

    `s` is the Riesz exponent. `eta` to `stop` are the schedule of `paper` (see `Schedule`), whose end point is also a
    second start of `descent`. `tolerance` is the residual at which `descent` stops, `limit` its greatest number of
    steps: 500 unless given, fewer for very many prototypes.
    """
    schedule = Schedule(eta, mu, decay, decay_every, first_decay, steps, epsilon, patience, stop)
    points = unit(take(vectors, "vectors"))
    settings = Settings(exponent(s), tolerance, affordable(*points.shape) if limit is None else limit)
    method = choose(method, *points.shape)
    way = go(points, method, schedule, settings, trace)
    return describe(way, method, s, vectors, trace)


def choose(method: str, count: int, dimension: int) -> str:
    """Check the method, and name the one that `auto` stands for."""
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}; known: {', '.join(METHODS)}.")
    if dimension == 1 and count > 2:
        raise ValueError(f"Only two prototypes can be apart in one dimension, not {count}: d must be at least 2.")
    if method == "auto":
        return "exact" if exact.has_closed_form(count, dimension) else "descent"
    return method


def go(points: Tensor, method: str, schedule: Schedule, settings: Settings, trace: bool) -> Way:
    """Let a method move unit (or zero) points."""
    if len(points) == 1:
        return begin(separate(points), trace)
    if method == "exact":
        return follow(begin(points, trace), [exact.solve(points)], trace)
    start = begin(separate(points), trace)
    if method == "paper":
        return follow(start, paper.updates(start.points, settings.s, schedule), trace)
    return race(start, schedule, settings, trace)


def begin(points: Tensor, trace: bool) -> Way:
    """Stand at the start."""
    return Way(points, 0, [pair_distances(points)] if trace else [])


def race(start: Way, schedule: Schedule, settings: Settings, trace: bool) -> Way:
    """Descend from several starts for a while, then only on the lowest way."""
    lap = min(RACE, 1 + settings.limit // 4)
    ways = [(follow(way, islice(path, lap), trace), path) for way, path in starts(start, schedule, settings, trace)]
    levels = [look(way.points, settings.s).level for way, _ in ways]
    margin = EQUAL * max(1.0, abs(min(levels)))
    way, path = next(pair for pair, level in zip(ways, levels, strict=True) if level <= min(levels) + margin)
    ways.clear()  # and with it the memory of the other descents
    return follow(way, path, trace)


def starts(start: Way, schedule: Schedule, settings: Settings, trace: bool) -> Iterator[tuple[Way, Iterator[Tensor]]]:
    """Begin where the prototypes are, or beside if no force acts there, and where Algorithm 1 ends."""
    yield start, descend(lift(start.points), settings)
    if look(start.points, settings.s).residual <= settings.tolerance:
        yield start, descend(shake(start.points), settings)
    with suppress(ValueError):  # a force that overflows Algorithm 1 only costs this start
        end = follow(start, paper.updates(start.points, settings.s, schedule), trace)
        yield end, descend(lift(end.points), settings)


def follow(way: Way, path: Iterable[Tensor], trace: bool) -> Way:
    """Go on along a path of points (K, d)."""
    points, steps, rows = way.points, way.steps, list(way.rows)
    for points in path:
        steps += 1
        rows += [pair_distances(points)] if trace else []
    return Way(points, steps, rows)


def describe(way: Way, method: str, s: float, like: Array, trace: bool) -> Alignment[Array]:
    """Measure where a way has ended."""
    place = look(way.points, s)
    return Alignment(
        prototypes=give_back(way.points, like),
        steps=way.steps,
        energy=place.level if s == 0 else grow(place.level),
        min_distance=min(2.0, float(closest(way.points).min())),
        method=method,
        residual=place.residual,
        distances=give_back(torch.stack(way.rows), like) if trace else None,
    )
