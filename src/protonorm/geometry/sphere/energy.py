"""Energy of repelling points (Eqs. 8 and 10), their forces (Eq. 11), and Algorithm 1, in Gram form."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from pydantic import Strict
from torch import Tensor

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Below1, Count, Fraction, Positive
from protonorm.geometry.points import Array, Block, Cloud, blocks, chunks, convert_back, make_cloud, read_points, unit

MAX_LOG = math.log(torch.finfo(torch.float64).max)
FEW = 10_000  # number of values up to which logarithms are taken individually
EMPTY = -1e300  # represents log 0
WARM_UP = {"change": 0, "rounding": 10}  # the authors' code compares forces only from its iteration 11 on
FOUR_DECIMALS = 1e-4  # rounding of the mean force in the authors' code

Updates = Annotated[Count, Strict()]  # a number of updates; rejects True and 2.0


class ForceField(NamedTuple):
    """Energy and forces of points, in a form that does not overflow for any exponent."""

    level: float  # E for s = 0, log E for s > 0, of the pairs that do not coincide
    force: Tensor  # (K, d) −∇E for s = 0, −∇ log E for s > 0
    touching: bool  # whether two points coincide: their energy is infinite, their mutual force set to zero


def energy(prototypes: Tensor | NDArray[Any], s: float = 0.0) -> float:
    """Compute the Riesz energy of all pairs: Σ log 1/dist for s = 0 (Eq. 10), Σ dist^−s for s > 0 (Eq. 8)."""
    field = force_field(read_points(prototypes), exponent(s))
    if field.touching:
        return math.inf
    return field.level if s == 0 else exp_or_inf(field.level)


def forces(prototypes: Array, s: float = 0.0) -> Array:
    """Compute F = −∇E, (K, d) (Eq. 11 for s = 0); points that coincide exactly do not repel each other."""
    return convert_back(force_of(force_field(read_points(prototypes), exponent(s)), s), prototypes)


def tangential(prototypes: Array, vectors: Array) -> Array:
    """Project the vectors (K, d) on the tangent spaces of the sphere at the unit prototypes (K, d)."""
    points, arrows = read_points(prototypes), read_points(vectors, "vectors")
    if points.shape != arrows.shape:
        raise ValueError(f"Prototypes {tuple(points.shape)} and vectors {tuple(arrows.shape)} must have one shape.")
    return convert_back(project(points, arrows), prototypes)


def project(points: Tensor, arrows: Tensor) -> Tensor:
    """Remove from each vector (K, d) its component along the unit point."""
    return arrows - (arrows * points).sum(dim=1, keepdim=True) * points


def exponent(s: float) -> float:
    """Validate the Riesz exponent."""
    if not (math.isfinite(s) and s >= 0):
        raise ValueError(f"s must be a finite number, zero or more, not {s}.")
    return s


def force_of(state: ForceField, s: float) -> Tensor:
    """Convert the field to F = −∇E."""
    return state.force if s == 0 else state.force * exp_or_inf(state.level)


def exp_or_inf(level: float) -> float:
    """Compute the exponential; infinity on overflow."""
    return math.exp(level) if level < MAX_LOG else math.inf


def force_field(points: Tensor, s: float) -> ForceField:
    """Compute energy and forces of (K, d) float64 points together."""
    cloud = make_cloud(points)
    force, levels, touching = torch.empty_like(points), [], False
    for block in blocks(cloud):
        level, weights = weigh(block, s)
        force[block.start : block.start + len(weights)] = push(cloud, weights, block)
        levels.append((slice(block.start, block.start + len(weights)), level))
        touching |= len(block.coincident) > 0
    force.div_(cloud.radius)
    if s == 0:
        pairs = len(points) * (len(points) - 1) / 2
        return ForceField(sum(level for _, level in levels) - pairs * math.log(cloud.radius), force, touching)
    level = float(torch.tensor([level for _, level in levels], dtype=torch.float64).logsumexp(dim=0)) - math.log(2)
    for rows, part in levels:
        force[rows] *= math.exp(part - level)
    return ForceField(level - s * math.log(cloud.radius), force, touching)


def weigh(block: Block, s: float) -> tuple[float, Tensor]:
    """Compute the block's part of the level, and W (b, K) with F_j = Σ_k W_jk (c_j − c_k); overwrites the block."""
    if s == 0:
        level = -0.25 * sum_logs(block)  # each pair occurs twice, and log dist = ½ log dist²
        return level, block.exclude(math.inf).reciprocal_()
    logs = block.squared.log().mul_(-0.5 * s)
    level = max(float(logs.flatten().logsumexp(dim=0)), EMPTY)
    return level, logs.sub_(level).exp_().mul_(s).div_(block.squared)  # relative to the block; rescaled in force_field


def sum_logs(block: Block) -> float:
    """Sum the logarithms of the squared distances; many are multiplied first, which is cheaper than a logarithm."""
    squared, rows, columns = block.exclude(1.0), block.near[:, 0], block.near[:, 1]
    tiny = squared[rows, columns]  # excluded, because their product might underflow
    squared[rows, columns] = 1.0
    result, products = float(tiny.log().sum()), squared.flatten()
    for _ in range(4 if len(products) > FEW else 0):  # a product of sixteen values between 1e-4 and 4 is representable
        half = len(products) // 2
        result += float(products[2 * half :].log().sum())  # the odd value
        products = products[:half] * products[half : 2 * half]
    result += float(products.log().sum())
    squared[rows, columns] = tiny
    return result


def push(cloud: Cloud, weights: Tensor, block: Block) -> Tensor:
    """Compute diag(W·1)·C − W·C for the rows of a block, close pairs by differences; overwrites the weights."""
    close_weights = weights[block.near[:, 0], block.near[:, 1]].unsqueeze(1)
    weights[block.near[:, 0], block.near[:, 1]] = 0.0
    own = cloud.ball[block.start : block.start + len(weights)]
    force = weights.sum(dim=1, keepdim=True) * own - weights @ cloud.ball
    count = 0
    for rows, columns in chunks(block.near, cloud):
        differences = cloud.differences(rows + block.start, columns)
        force.index_add_(0, rows, differences.mul_(close_weights[count : count + len(rows)]))
        count += len(rows)
    return force


@dataclass(frozen=True, config=STRICT)
class Schedule:
    """Step sizes and stopping rule of Algorithm 1."""

    eta: Positive = 0.1  # η, Eq. 12
    mu: Below1 = 0.9  # μ, Eq. 12
    decay: Fraction = 0.95  # factor on η …
    decay_every: Updates = 10  # … after this many updates
    first_decay: Updates = 1  # updates before the first decay: 1 as the authors' code, 10 as the paper
    steps: Updates = 500  # T, maximum number of updates
    epsilon: Positive = 1e-5  # ε of "change" and "tangential"
    patience: Updates = 10  # consecutive iterations that must agree
    stop: Literal["change", "rounding", "tangential"] = "change"  # "rounding" to four decimals is the authors' code

    def rate(self, t: int) -> float:
        """Return η of update t = 0, 1, …: η·decay^⌈t/10⌉ with first_decay = 1, η·decay^⌊t/10⌋ with first_decay = 10."""
        decays = 0 if t < self.first_decay else 1 + (t - self.first_decay) // self.decay_every
        return self.eta * self.decay**decays

    def agree(self, strength: float, previous: float) -> bool:
        """Return whether the mean force norms of two consecutive iterations agree."""
        if self.stop == "rounding":
            return round(strength / FOUR_DECIMALS) == round(previous / FOUR_DECIMALS)
        return abs(strength - previous) < self.epsilon


DEFAULT_SCHEDULE = Schedule()


def updates(points: Tensor, s: float, schedule: Schedule) -> Iterator[Tensor]:
    """Yield the points after each update of Algorithm 1 from unit points (K, d)."""
    velocity = torch.zeros_like(points)
    previous, agreements = math.inf, 0
    for t in range(schedule.steps):
        force = force_of(force_field(points, s), s)  # Eq. 11
        strength = float(force.norm(dim=1).mean())
        if not math.isfinite(strength):
            raise ValueError(f"Two prototypes are too close for s = {s}: their force overflows. Use method 'descent'.")
        if schedule.stop == "tangential" and float(project(points, force).norm(dim=1).max()) < schedule.epsilon:
            return
        velocity.mul_(schedule.mu).add_(force, alpha=schedule.rate(t))  # Eq. 12
        points = unit(points + velocity)  # Eq. 13, 14
        yield points
        agreements = agreements + 1 if t > WARM_UP.get(schedule.stop, t) and schedule.agree(strength, previous) else 0
        if agreements == schedule.patience:
            return
        previous = strength
