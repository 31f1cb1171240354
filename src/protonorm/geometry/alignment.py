"""Prototype alignment: place prototypes on the unit sphere with minimal energy (Algorithm 1 and other solvers).

Four methods: `exact`, where the optimum has a closed form; `descent`, always; `paper`, as published; `auto` chooses
between the first two.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from protonorm.geometry.points import (
    Array,
    convert_back,
    distance_range,
    find_duplicates,
    nearest_distances,
    read_points,
    unit,
)
from protonorm.geometry.sphere.descent import Settings, descend, evaluate, step_limit
from protonorm.geometry.sphere.energy import DEFAULT_SCHEDULE, Schedule, energy, exp_or_inf, forces, tangential, updates

__all__ = ["METHODS", "Alignment", "Schedule", "align", "energy", "forces", "tangential"]

METHODS = ("auto", "exact", "paper", "descent")
RACE = 100  # steps after which only the lowest descent continues, or a quarter of the limit
EQUAL = 1e-12  # relative difference below which two energies are equal
FLAT = 1e-6  # relative extent of the points below which a direction is unused
NUDGE = 1e-3  # distance by which points are perturbed


@dataclass(frozen=True, eq=False)
class Alignment(Generic[Array]):
    """Aligned prototypes with their energy, distances and solver statistics."""

    prototypes: Array  # (K, d), unit rows
    steps: int  # updates performed: 1 for a closed form, the authors' last t plus 1 for `paper`
    energy: float  # Eq. 10, or Eq. 8 for s > 0
    min_distance: float  # between two prototypes; 2, the diameter, if there is only one
    method: str  # method used, never "auto"
    residual: float  # largest tangential force over the mean radial force: 0 at a stationary point
    distances: Array | None = None  # (steps + 1, 3) if traced: minimum, mean, maximum, initially and after each step


class Trajectory(NamedTuple):
    """Points after some steps of a method."""

    points: Tensor  # (K, d), current points
    steps: int
    rows: list[Tensor]  # (3,) minimum, mean and maximum distance at the start and after every step, if traced


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
    """Place vectors (K, d) on the unit sphere so that their Riesz energy is minimal.

    Args:
        vectors: Array or tensor (K, d) of vectors of any length.
        method: `exact` where the optimum has a closed form, `descent` for any K and d, `paper` as published, or `auto`:
            `exact` if possible, otherwise `descent`.
        s: Riesz exponent; 0 is the logarithmic energy.
        schedule: Step sizes and stopping rule of `paper`, whose result is also a second start of `descent`.
        tolerance: Residual at which `descent` stops.
        limit: Maximum number of steps of `descent`; 500 by default, fewer for very many prototypes.
        trace: Whether to record the distances between prototypes after each step.

    Returns:
        The aligned prototypes, in the type and on the device of `vectors`, computed in float64.

    Raises:
        ValueError: If `vectors` are not finite floats (K, d), or the method cannot align them.

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
    settings = Settings(s, tolerance, step_limit(*points.shape) if limit is None else limit)
    method = choose(method, *points.shape)
    end = run_method(points, method, schedule, settings, trace)
    optimum = evaluate(end.points, s)
    return Alignment(
        prototypes=convert_back(end.points, vectors),
        steps=end.steps,
        energy=optimum.level if s == 0 else exp_or_inf(optimum.level),
        min_distance=min(2.0, float(nearest_distances(end.points).min())),
        method=method,
        residual=optimum.residual,
        distances=convert_back(torch.stack(end.rows), vectors) if trace else None,
    )


def choose(method: str, count: int, dimension: int) -> str:
    """Check that a method can align K prototypes in d dimensions, and resolve `auto`."""
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}; known: {', '.join(METHODS)}.")
    if dimension == 1 and count > 2:
        raise ValueError(f"Only two prototypes can be apart in one dimension, not {count}: d must be at least 2.")
    closed_form = count <= dimension + 1 or dimension == 2  # whether the optimum has a closed form
    if method == "exact" and not closed_form:
        raise ValueError(
            f"No closed form is known for {count} prototypes in {dimension} dimensions: method 'exact' needs "
            f"K ≤ d + 1 or d = 2; use 'descent' (or 'auto', which chooses)."
        )
    return method if method != "auto" else "exact" if closed_form else "descent"


def run_method(points: Tensor, method: str, schedule: Schedule, settings: Settings, trace: bool) -> Trajectory:
    """Run a method on unit (or zero) points."""
    if len(points) == 1:
        return new_trajectory(separate(points), trace)
    if method == "exact":
        solution = simplex(points) if len(points) <= points.shape[1] + 1 else polygon(points)  # nearest to the points
        return follow(new_trajectory(points, trace), [solution], trace)
    start = new_trajectory(separate(points), trace)
    if method == "paper":
        return follow(start, updates(start.points, settings.s, schedule), trace)
    return descend_from_several_starts(start, schedule, settings, trace)


def new_trajectory(points: Tensor, trace: bool) -> Trajectory:
    """Create a trajectory without steps."""
    return Trajectory(points, 0, [distance_range(points)] if trace else [])


def descend_from_several_starts(start: Trajectory, schedule: Schedule, settings: Settings, trace: bool) -> Trajectory:
    """Descend from several starts for some steps, then continue only the lowest descent."""
    race = min(RACE, 1 + settings.limit // 4)
    descents = [
        (follow(origin, islice(path, race), trace), path) for origin, path in starts(start, schedule, settings, trace)
    ]
    levels = [evaluate(origin.points, settings.s).level for origin, _ in descents]
    margin = EQUAL * max(1.0, abs(min(levels)))
    lowest, path = next(pair for pair, level in zip(descents, levels, strict=True) if level <= min(levels) + margin)
    descents.clear()  # frees the memory of the other descents
    return follow(lowest, path, trace)


def starts(
    start: Trajectory, schedule: Schedule, settings: Settings, trace: bool
) -> Iterator[tuple[Trajectory, Iterator[Tensor]]]:
    """Yield descents from the prototypes, from perturbed ones if no force acts, and from Algorithm 1's result."""
    yield start, descend(use_all_dimensions(start.points), settings)
    if evaluate(start.points, settings.s).residual <= settings.tolerance:
        yield start, descend(unit(start.points + NUDGE * fixed_directions(start.points)), settings)
    with suppress(ValueError):  # if Algorithm 1 overflows, only this start is lost
        end = follow(start, updates(start.points, settings.s, schedule), trace)
        yield end, descend(use_all_dimensions(end.points), settings)


def follow(trajectory: Trajectory, path: Iterable[Tensor], trace: bool) -> Trajectory:
    """Extend a trajectory by a path of points (K, d)."""
    points, steps, rows = trajectory.points, trajectory.steps, list(trajectory.rows)
    for points in path:
        steps += 1
        rows += [distance_range(points)] if trace else []
    return Trajectory(points, steps, rows)


def equally_spread(num_classes: int, feature_dim: int, seed: int) -> Tensor:
    """Compute maximally spread unit vectors (K, d) from a random start: a regular simplex if K ≤ d + 1."""
    return _spread(num_classes, feature_dim, seed).clone()


@lru_cache(maxsize=4)
def _spread(num_classes: int, feature_dim: int, seed: int) -> Tensor:
    """Compute the vectors once per process: for K > d + 1 this takes a second or more."""
    start = torch.randn(num_classes, feature_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return align(start).prototypes.float()


def simplex(points: Tensor) -> Tensor:
    """Find the regular simplex nearest to the points.

    Its vertices are √(K/(K−1))·B·Q with B orthonormal and orthogonal to 1, and Q (K−1, d) with orthonormal rows; the
    nearest has Q = U·Vᵀ, the polar factor of Bᵀ·C. Equal points only make singular values zero: Q stays orthonormal.
    """
    basis = helmert(len(points)).to(points.device)
    left, _, right = torch.linalg.svd(basis.T @ points, full_matrices=False)
    return unit(basis @ (left @ right))


def helmert(count: int) -> Tensor:
    """Build an orthonormal basis (K, K−1) of the vectors whose entries sum to zero."""
    order = torch.arange(1, count, dtype=torch.float64)
    columns = torch.ones(count, count - 1, dtype=torch.float64).triu()  # column m: m ones, then −m, then zeros
    columns.diagonal(-1).copy_(-order)
    return columns / (order * (order + 1)).sqrt()


def polygon(points: Tensor) -> Tensor:
    """Space the points equally on the circle, in their angular order, rotated to be as near to them as possible."""
    plane = torch.complex(points[:, 0], points[:, 1])  # (K,)
    order = plane.angle().argsort(stable=True)
    steps = torch.arange(len(points), dtype=torch.float64, device=points.device) * (2 * math.pi / len(points))
    turn = (plane[order] * torch.polar(torch.ones_like(steps), -steps)).sum().angle()
    angles = torch.empty_like(steps)
    angles[order] = steps + turn
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def separate(points: Tensor) -> Tensor:
    """Replace zero rows by a fixed direction, and perturb all but the first of coincident unit rows."""
    zero = points.square().sum(dim=1) == 0
    noise = fixed_directions(points)
    points = torch.where(zero.unsqueeze(1), unit(noise), points)
    perturbed = unit(points + NUDGE * noise) if points.shape[1] > 1 else -points
    return torch.where(find_duplicates(points).unsqueeze(1), perturbed, points)


def use_all_dimensions(points: Tensor) -> Tensor:
    """Perturb unit points into the dimensions they leave unused, where the force would remain zero."""
    spread, axes = torch.linalg.eigh(points.T @ points)  # ascending squared extents
    unused = axes[:, spread <= FLAT**2 * spread[-1]]  # (d, m)
    if points.shape[1] - unused.shape[1] >= min(len(points) - 1, points.shape[1]):
        return points
    return unit(points + NUDGE * fixed_directions(points) @ unused @ unused.T)


def fixed_directions(points: Tensor) -> Tensor:
    """Draw a fixed direction of length about 1 for every point, (K, d)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(points.shape, generator=generator, dtype=torch.float64)
    return noise.to(points.device).div_(math.sqrt(points.shape[1]))
