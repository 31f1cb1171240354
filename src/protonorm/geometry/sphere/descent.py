"""Descend the energy of points on the sphere to a stationary point: L-BFGS with a line search that survives rounding.

The unknowns are vectors of any length whose directions are the points. The gradient is then the tangential force over
the length, the radial force, which says nothing, never enters, and no move leaves the sphere.
For s > 0 the logarithm of the energy is descended: same minima, no overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from protonorm.geometry.sphere.energy import force_field, project
from protonorm.geometry.sphere.memory import Memory
from protonorm.geometry.sphere.stiffness import stiffness

TRIALS = 40  # of one line search
DECREASE, CURVATURE = 1e-4, 0.9  # of the Wolfe conditions
WORK = 4 * 10**11  # multiplications that a descent may take unless told otherwise: of (K, K) by (K, d) …
PASSES = 100  # … and this many in place of d for what else is done to (K, K) numbers
NOISE = 1e-12  # of log dist: smaller changes of the energy are judged by slopes, not by differences


class Place(NamedTuple):
    """A point of the descent."""

    vectors: Tensor  # (K, d), any lengths
    points: Tensor  # (K, d), their directions
    level: float
    gradient: Tensor  # (K, d)
    residual: float  # the largest tangential force over the mean radial force


@dataclass(frozen=True)
class Settings:
    """Which energy is descended, and when the descent stops."""

    s: float = 0.0  # Riesz exponent, Eq. 8
    tolerance: float = 1e-9  # residual at which the descent stops
    limit: int = 500  # greatest number of steps

    def __post_init__(self) -> None:
        """Refuse settings with which a descent would never end."""
        if not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ValueError(f"tolerance must be a finite number above 0, not {self.tolerance}.")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"limit must be a whole number, at least 1, not {self.limit!r}.")


def step_limit(count: int, dimension: int) -> int:
    """Choose a limit for K points in d dimensions: 500 steps, fewer when that would be minutes of work."""
    return max(20, min(500, WORK // (count * count * (dimension + PASSES))))


def evaluate(vectors: Tensor, s: float) -> Place:
    """Evaluate the energy and its slope at the directions of the vectors."""
    lengths = vectors.norm(dim=1, keepdim=True)
    points = vectors / lengths
    state = force_field(points, s)
    pull = project(points, state.force)
    residual = float(pull.norm(dim=1).max()) / radial(len(points), s)
    return Place(vectors, points, math.inf if state.touching else state.level, pull.div_(-lengths), residual)


def radial(count: int, s: float) -> float:
    """Give the mean of F_j·c_j, which is the same for all arrangements of K unit points: the scale of the forces."""
    return max(count - 1, 1) / 2 if s == 0 else s / count


def descend(points: Tensor, settings: Settings) -> Iterator[Tensor]:
    """Go down from unit points (K, d), step by step, until the residual is small or no lower point is found."""
    place, memory, steps = evaluate(points, settings.s), Memory(points), 0
    while steps < settings.limit and place.residual > settings.tolerance:
        following = search(place, direction(place, memory, settings.s), settings.s)
        if following is not None:
            memory.add(following.vectors - place.vectors, following.gradient - place.gradient)
            place, steps = following, steps + 1
            yield place.points
        elif memory.order:
            memory.order.clear()  # a new beginning along the force itself
        else:
            return


def direction(place: Place, memory: Memory, s: float) -> Tensor:
    """Choose the direction of the next step, (K, d): no row turns by more than half a right angle."""
    lengths = place.vectors.norm(dim=1, keepdim=True)
    if memory.order:
        move = memory.direction(place.gradient, divider(place, s))
        if dot(move, place.gradient) < 0:
            return move.div_(max(1.0, float((move.norm(dim=1, keepdim=True) / lengths).max())))
        memory.order.clear()
    pull: Tensor = -place.gradient * lengths
    return pull.mul_(lengths / (pull.norm(dim=1, keepdim=True) + radial(len(pull), s)))


def divider(place: Place, s: float) -> Callable[[Tensor], Tensor] | None:
    """Make a function that divides slopes (K, d) by the known stiffness; None where it does not pay."""
    count, dimension = place.points.shape
    if s > 0 or count <= dimension:
        return None
    lengths, resistance = place.vectors.norm(dim=1, keepdim=True), stiffness(place.points)
    return lambda slopes: resistance.divide(slopes * lengths).mul_(lengths)


def search(place: Place, move: Tensor, s: float) -> Place | None:
    """Find a point along the move that fulfils the weak Wolfe conditions, or is at least lower."""
    slope = dot(place.gradient, move)
    low, low_slope, high, reach = 0.0, slope, math.inf, 1.0
    best = None
    for _ in range(TRIALS):
        there = evaluate(place.vectors + reach * move, s)
        steep = dot(there.gradient, move)
        if is_too_far(place, there, slope * reach, steep * reach, s):
            high = reach
            share = low_slope / (low_slope - steep) if steep > 0 else 0.5  # where the slope would vanish
            reach = low + min(max(share, 0.1), 0.9) * (high - low)
        elif steep < CURVATURE * slope:
            best, low, low_slope = there, reach, steep
            reach = 2 * reach if high == math.inf else (low + high) / 2
        else:
            return there
    return best


def is_too_far(place: Place, there: Place, fall: float, rise: float, s: float) -> bool:
    """Tell whether the energy fell less than the slope promised; judge by the new slope where rounding hides it."""
    count = len(place.vectors)
    noise = NOISE * (count * (count - 1) / 2 if s == 0 else 1 + s)
    if -fall > noise:
        return not there.level <= place.level + DECREASE * fall
    return not rise <= (2 * DECREASE - 1) * fall


def dot(left: Tensor, right: Tensor) -> float:
    """Multiply two (K, d) tensors as vectors."""
    return float(torch.dot(left.flatten(), right.flatten()))
