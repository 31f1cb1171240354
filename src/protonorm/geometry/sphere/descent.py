"""Minimisation of the energy of points on the sphere: L-BFGS with a line search that is robust to rounding.

The variables are vectors of any length whose directions are the points. The gradient is then the tangential force over
the length; the radial force, which carries no information, does not enter, and no move leaves the sphere. For s > 0 the
logarithm of the energy is minimised: same minima, no overflow.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.geometry.sphere.energy import exponent, force_field, project

TRIALS = 40  # of a line search
DECREASE, CURVATURE = 1e-4, 0.9  # of the Wolfe conditions
WORK = 4 * 10**11  # default bound on the multiplications of a descent: of (K, K) by (K, d) …
PASSES = 100  # … and this many in place of d for the other operations on (K, K) values
NOISE = 1e-12  # of log dist: smaller changes of the energy are judged by slopes instead of differences
LENGTH = 10  # m, number of stored moves
CURVED = 1e-12  # minimum cosine between a move and the change of gradient along it
REST = 4.0  # a in units of √K/d: with less, first trials of a line search go too far; with more, steps are short


class Iterate(NamedTuple):
    """Iterate of the descent."""

    vectors: Tensor  # (K, d), any length
    points: Tensor  # (K, d), their directions
    level: float
    gradient: Tensor  # (K, d)
    residual: float  # largest tangential force over the mean radial force


@dataclass(frozen=True)
class Settings:
    """Settings of a descent: the energy and the stopping rule."""

    s: float = 0.0  # Riesz exponent, Eq. 8
    tolerance: float = 1e-9  # residual at which the descent stops
    limit: int = 500  # maximum number of steps

    def __post_init__(self) -> None:
        """Raise for an invalid exponent, and for settings with which a descent would not terminate."""
        exponent(self.s)
        if not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ValueError(f"tolerance must be a finite number above 0, not {self.tolerance}.")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"limit must be a whole number, at least 1, not {self.limit!r}.")


def step_limit(count: int, dimension: int) -> int:
    """Choose the step limit for K points in d dimensions: 500, fewer if that would take minutes."""
    return max(20, min(500, WORK // (count * count * (dimension + PASSES))))


def evaluate(vectors: Tensor, s: float) -> Iterate:
    """Evaluate the energy and its gradient at the directions of the vectors."""
    lengths = vectors.norm(dim=1, keepdim=True)
    points = vectors / lengths
    state = force_field(points, s)
    force = project(points, state.force)
    residual = float(force.norm(dim=1).max()) / radial(len(points), s)
    return Iterate(vectors, points, math.inf if state.touching else state.level, force.div_(-lengths), residual)


def radial(count: int, s: float) -> float:
    """Return the mean of F_j·c_j, which is the same for all arrangements of K unit points: the scale of the forces."""
    return max(count - 1, 1) / 2 if s == 0 else s / count


def descend(points: Tensor, settings: Settings) -> Iterator[Tensor]:
    """Yield the points of a descent from unit points (K, d) until the residual is small or the energy stops falling."""
    iterate, memory, steps = evaluate(points, settings.s), Memory(points), 0
    while steps < settings.limit and iterate.residual > settings.tolerance:
        successor = search(iterate, direction(iterate, memory, settings.s), settings.s)
        if successor is not None:
            memory.add(successor.vectors - iterate.vectors, successor.gradient - iterate.gradient)
            iterate, steps = successor, steps + 1
            yield iterate.points
        elif memory.order:
            memory.order.clear()  # restart along the force itself
        else:
            return


def direction(iterate: Iterate, memory: "Memory", s: float) -> Tensor:
    """Choose the direction of the next step, (K, d), in which no row turns by more than 45 degrees."""
    lengths = iterate.vectors.norm(dim=1, keepdim=True)
    if memory.order:
        move = memory.direction(iterate.gradient, divider(iterate, s))
        if dot(move, iterate.gradient) < 0:
            return move.div_(max(1.0, float((move.norm(dim=1, keepdim=True) / lengths).max())))
        memory.order.clear()
    force: Tensor = -iterate.gradient * lengths
    return force.mul_(lengths / (force.norm(dim=1, keepdim=True) + radial(len(force), s)))


def divider(iterate: Iterate, s: float) -> Callable[[Tensor], Tensor] | None:
    """Create a function that divides gradients (K, d) by the known stiffness; None where it does not pay."""
    count, dimension = iterate.points.shape
    if s > 0 or count <= dimension:
        return None
    lengths, resistance = iterate.vectors.norm(dim=1, keepdim=True), stiffness(iterate.points)
    return lambda slopes: resistance.divide(slopes * lengths).mul_(lengths)


def search(iterate: Iterate, move: Tensor, s: float) -> Iterate | None:
    """Find a point along the move that fulfils the weak Wolfe conditions, or at least has lower energy."""
    slope = dot(iterate.gradient, move)
    low, low_slope, high, length = 0.0, slope, math.inf, 1.0
    best = None
    for _ in range(TRIALS):
        candidate = evaluate(iterate.vectors + length * move, s)
        new_slope = dot(candidate.gradient, move)
        if is_too_far(iterate, candidate, slope * length, new_slope * length, s):
            high = length
            share = low_slope / (low_slope - new_slope) if new_slope > 0 else 0.5  # estimated zero of the slope
            length = low + min(max(share, 0.1), 0.9) * (high - low)
        elif new_slope < CURVATURE * slope:
            best, low, low_slope = candidate, length, new_slope
            length = 2 * length if high == math.inf else (low + high) / 2
        else:
            return candidate
    return best


def is_too_far(iterate: Iterate, candidate: Iterate, fall: float, rise: float, s: float) -> bool:
    """Return whether the energy fell less than the slope predicted; use the new slope where rounding dominates."""
    count = len(iterate.vectors)
    noise = NOISE * (count * (count - 1) / 2 if s == 0 else 1 + s)
    if -fall > noise:
        return not candidate.level <= iterate.level + DECREASE * fall
    return not rise <= (2 * DECREASE - 1) * fall


def dot(left: Tensor, right: Tensor) -> float:
    """Compute the inner product of two (K, d) tensors."""
    return float(torch.dot(left.flatten(), right.flatten()))


class Memory:
    """Inverse Hessian, estimated from the last moves, the changes of gradient along them, and their products.

    The two-loop recursion runs over the (2m, 2m) products, not over vectors of length K·d, so a direction costs four
    passes over the memory, independent of m.
    """

    def __init__(self, like: Tensor) -> None:
        """Initialise without moves, for points (K, d)."""
        self.rows = like.new_zeros(2 * LENGTH, like.numel())  # moves, then changes of gradient
        self.products = np.zeros((2 * LENGTH, 2 * LENGTH))
        self.order: list[int] = []  # indices in use, the oldest first

    def add(self, step: Tensor, change: Tensor) -> None:
        """Add a move (K, d) and the change of gradient along it, if the curvature along it is positive."""
        pair = torch.stack((step.flatten(), change.flatten()))
        inner = (pair @ pair.T).tolist()
        if inner[0][1] <= CURVED * (inner[0][0] * inner[1][1]) ** 0.5:
            return
        slot = self.order.pop(0) if len(self.order) == LENGTH else len(self.order)
        self.order.append(slot)
        slots = [slot, LENGTH + slot]
        self.rows[slots] = pair
        products = (self.rows @ pair.T).cpu().numpy()  # (2m, 2)
        self.products[:, slots] = products
        self.products[slots] = products.T

    def direction(self, gradient: Tensor, divide: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Apply minus the inverse Hessian to a gradient (K, d).

        Args:
            gradient: Gradient (K, d).
            divide: Applies the initial inverse Hessian of the recursion; a scalar multiple of the identity by default.
        """
        curvature = {slot: self.products[slot, LENGTH + slot] for slot in self.order}
        slopes, weights, coefficients = self._along(gradient), np.zeros(2 * LENGTH), {}
        for slot in reversed(self.order):
            coefficients[slot] = (slopes[slot] - self.products[slot] @ weights) / curvature[slot]
            weights[LENGTH + slot] = coefficients[slot]
        residual = gradient - self._mixed(weights, gradient)
        newest = self.order[-1]
        scale = curvature[newest] / self.products[LENGTH + newest, LENGTH + newest]
        move = divide(residual) if divide else residual.mul_(scale)
        slopes, weights = self._along(move), np.zeros(2 * LENGTH)
        for slot in self.order:
            projection = slopes[LENGTH + slot] + self.products[LENGTH + slot] @ weights
            weights[slot] = coefficients[slot] - projection / curvature[slot]
        return move.add_(self._mixed(weights, move)).neg_()

    def _along(self, vector: Tensor) -> NDArray[np.float64]:
        """Multiply all rows by a (K, d) tensor, (2m,)."""
        return (self.rows @ vector.flatten()).cpu().numpy()

    def _mixed(self, weights: NDArray[np.float64], like: Tensor) -> Tensor:
        """Compute the combination of the rows with coefficients (2m,), (K, d)."""
        return (torch.from_numpy(weights).to(self.rows) @ self.rows).view_as(like)


class Stiffness(NamedTuple):
    """Stiff part of the logarithmic energy's curvature, known in advance, so that L-BFGS need not learn it.

    With small products g = c_j·c_k the energy of a pair is −½ log 2 + ½(g + g²/2 + …). Its first two terms resist a
    common shift of all points, and any move C·S with a symmetric S (d, d) that stretches the cloud along some axes;
    they do not resist any other move. Near a stationary point the second derivative along a tangential move D (K, d) is
    therefore

        ½‖1ᵀD‖² + ‖sym(CᵀD)‖² + a‖D‖²,

    where a, of the order of √K/d, approximates all further terms.
    """

    points: Tensor  # (K, d)
    centred: Tensor  # (K, d), points minus their mean
    squares: Tensor  # (d,) squared extents along the axes
    axes: Tensor  # (d, d)
    rest: float  # a

    def divide(self, arrows: Tensor) -> Tensor:
        """Compute the tangential move (K, d) that tangential forces (K, d) cause."""
        turned = self.axes.T @ (self.centred.T @ arrows) @ self.axes
        stretch = (turned + turned.T) / (2 * self.rest + self.squares.unsqueeze(1) + self.squares)  # aS + ½(GS + SG)
        move = arrows - self.centred @ (self.axes @ stretch @ self.axes.T)
        shift = move.mean(dim=0) / (1 + 2 * self.rest / len(arrows))  # centred: shift and stretch are independent
        return project(self.points, move.sub_(shift)).div_(self.rest)


def stiffness(points: Tensor) -> Stiffness:
    """Compute the stiffness of unit points (K, d)."""
    centred = points - points.mean(dim=0)
    squares, axes = torch.linalg.eigh(centred.T @ centred)
    return Stiffness(points, centred, squares, axes, REST * math.sqrt(len(points)) / points.shape[1])
