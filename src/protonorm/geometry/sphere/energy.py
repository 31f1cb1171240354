"""The energy of points that repel each other (Eq. 8 and 10) and their forces (Eq. 11), in Gram form."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.geometry.points import Array, convert_back, read_points
from protonorm.geometry.sphere.pairs import Block, Cloud, blocks, chunks, make_cloud

LARGEST = math.log(torch.finfo(torch.float64).max)
FEW = 10_000  # numbers whose logarithms are taken one by one
EMPTY = -1e300  # stands for log 0


class ForceField(NamedTuple):
    """Energy and forces of points, in a form that no exponent overflows."""

    level: float  # E for s = 0, log E for s > 0, of the pairs that do not coincide
    force: Tensor  # (K, d) −∇E for s = 0, −∇ log E for s > 0
    touching: bool  # whether two points coincide: their energy is infinite, their mutual force set to zero

    def energy(self, s: float) -> float:
        """Turn the level into the energy."""
        if self.touching:
            return math.inf
        return self.level if s == 0 else exp_or_inf(self.level)


def energy(prototypes: Tensor | NDArray[Any], s: float = 0.0) -> float:
    """Sum the Riesz energy over all pairs: log 1/dist for s = 0 (Eq. 10), dist^−s for s > 0 (Eq. 8)."""
    return force_field(read_points(prototypes), exponent(s)).energy(s)


def forces(prototypes: Array, s: float = 0.0) -> Array:
    """Compute F = −∇E, (K, d) (Eq. 11 for s = 0); points that coincide exactly do not push each other."""
    return convert_back(force_of(force_field(read_points(prototypes), exponent(s)), s), prototypes)


def tangential(prototypes: Array, vectors: Array) -> Array:
    """Project the vectors (K, d) on the tangent spaces of the sphere at the unit prototypes (K, d)."""
    points, arrows = read_points(prototypes), read_points(vectors, "vectors")
    if points.shape != arrows.shape:
        raise ValueError(f"Prototypes {tuple(points.shape)} and vectors {tuple(arrows.shape)} must have one shape.")
    return convert_back(project(points, arrows), prototypes)


def project(points: Tensor, arrows: Tensor) -> Tensor:
    """Remove from each vector (K, d) its part along the unit point."""
    return arrows - (arrows * points).sum(dim=1, keepdim=True) * points


def exponent(s: float) -> float:
    """Check the Riesz exponent."""
    if not (math.isfinite(s) and s >= 0):
        raise ValueError(f"s must be a finite number, zero or more, not {s}.")
    return s


def force_of(state: ForceField, s: float) -> Tensor:
    """Turn the field into F = −∇E."""
    return state.force if s == 0 else state.force * exp_or_inf(state.level)


def exp_or_inf(level: float) -> float:
    """Take the exponential, infinite where it does not fit."""
    return math.exp(level) if level < LARGEST else math.inf


def force_field(points: Tensor, s: float) -> ForceField:
    """Compute energy and forces of (K, d) float64 points at once."""
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
        level = -0.25 * sum_logs(block)  # each pair is met twice, and log dist = ½ log dist²
        return level, block.exclude(math.inf).reciprocal_()
    logs = block.squared.log().mul_(-0.5 * s)
    level = max(float(logs.flatten().logsumexp(dim=0)), EMPTY)
    return level, logs.sub_(level).exp_().mul_(s).div_(
        block.squared
    )  # relative to the block, made whole in force_field


def sum_logs(block: Block) -> float:
    """Add the logarithms of the squared distances; many are multiplied first, which is cheaper than a logarithm."""
    squared, rows, columns = block.exclude(1.0), block.near[:, 0], block.near[:, 1]
    tiny = squared[rows, columns]  # kept out, as their product might vanish
    squared[rows, columns] = 1.0
    result, products = float(tiny.log().sum()), squared.flatten()
    for _ in range(4 if len(products) > FEW else 0):  # sixteen numbers between 1e-4 and 4 have a product
        half = len(products) // 2
        result += float(products[2 * half :].log().sum())  # the odd one
        products = products[:half] * products[half : 2 * half]
    result += float(products.log().sum())
    squared[rows, columns] = tiny
    return result


def push(cloud: Cloud, weights: Tensor, block: Block) -> Tensor:
    """Compute diag(W·1)·C − W·C for the rows of a block, the close pairs by differences; overwrites the weights."""
    close = weights[block.near[:, 0], block.near[:, 1]].unsqueeze(1)
    weights[block.near[:, 0], block.near[:, 1]] = 0.0
    own = cloud.ball[block.start : block.start + len(weights)]
    force = weights.sum(dim=1, keepdim=True) * own - weights @ cloud.ball
    done = 0
    for rows, columns in chunks(block.near, cloud):
        differences = cloud.differences(rows + block.start, columns)
        force.index_add_(0, rows, differences.mul_(close[done : done + len(rows)]))
        done += len(rows)
    return force
