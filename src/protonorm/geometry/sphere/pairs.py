"""Squared distances of all pairs of points, by blocks of rows of the Gram matrix.

No (K, K, d) tensor is built, and the (K, K) one only some rows at a time, so memory grows with K and not with K².
Two points so close that the Gram form would lose their distance to cancellation are measured by their difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CLOSE = 1e-4  # a pair is close when its squared distance is below this, the radius of the cloud being 1
BLOCK = 1 << 22  # numbers in a block: 32 MB


class Cloud(NamedTuple):
    """Points, and the same points centred and scaled into the unit ball, where rounding errors are smallest."""

    points: Tensor  # (K, d)
    ball: Tensor  # (K, d) = (points − centre) / radius
    radius: float

    def differences(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Subtract pairs of points, (P, d), in units of the radius."""
        return (self.points[rows] - self.points[columns]).div_(self.radius)


class Block(NamedTuple):
    """Squared distances of some rows to all points, in units of the radius squared."""

    start: int  # number of the first row
    squared: Tensor  # (b, K), infinite where a point meets itself or one that coincides with it
    near: Tensor  # (P, 2) close pairs (row in the block, column)
    coincident: Tensor  # (P', 2) those of them that coincide

    def exclude(self, value: float) -> Tensor:
        """Put another value where no two different points meet."""
        self.squared.diagonal(self.start).fill_(value)
        if len(self.coincident):
            self.squared[self.coincident[:, 0], self.coincident[:, 1]] = value
        return self.squared


def make_cloud(points: Tensor) -> Cloud:
    """Centre and scale points (K, d)."""
    centred = points - points.mean(dim=0)
    radius = float(centred.norm(dim=1).max()) or 1.0
    return Cloud(points, centred.div_(radius), radius)


def blocks(cloud: Cloud) -> Iterator[Block]:
    """Go through the squared distances of a cloud, some rows at a time."""
    norms, ones = cloud.ball.square().sum(dim=1, keepdim=True), torch.ones_like(cloud.ball[:, :1])
    left, right = torch.cat((-2 * cloud.ball, norms, ones), dim=1), torch.cat((cloud.ball, ones, norms), dim=1)
    height = max(1, BLOCK // len(left))
    for start in range(0, len(left), height):
        squared = left[start : start + height] @ right.T  # |x|² + |y|² − 2 x·y in one product
        squared.diagonal(start).fill_(math.inf)
        near = (squared <= CLOSE).nonzero()
        for rows, columns in chunks(near, cloud):
            squared[rows, columns] = cloud.differences(rows + start, columns).square_().sum(dim=1)
        coincident = near[squared[near[:, 0], near[:, 1]] == 0] if len(near) else near
        block = Block(start, squared, near, coincident)
        block.exclude(math.inf)
        yield block


def chunks(pairs: Tensor, cloud: Cloud) -> Iterator[tuple[Tensor, Tensor]]:
    """Split a list of pairs (P, 2) so that their differences fit in a block."""
    size = max(1, BLOCK // cloud.points.shape[1])
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size, 0], pairs[start : start + size, 1]


def pair_distances(points: Tensor) -> Tensor:
    """List the distances of all pairs j < k of (K, d) points, (K(K−1)/2,), row after row."""
    cloud, parts = make_cloud(points), []
    for block in blocks(cloud):
        above = torch.ones_like(block.squared, dtype=torch.bool).triu_(block.start + 1)
        parts.append(block.exclude(0.0)[above].sqrt_())
    return torch.cat(parts).mul_(cloud.radius)


def distance_range(points: Tensor) -> Tensor:
    """Find the least, the mean and the greatest distance of two of (K, d) points, (3,); NaN when there is no pair.

    Only a block of distances is held at a time, whatever K is.
    """
    cloud, count = make_cloud(points), len(points)
    if count < 2:
        return points.new_full((3,), math.nan)
    least, total, greatest = math.inf, 0.0, 0.0
    for block in blocks(cloud):
        apart = block.exclude(0.0).sqrt_()
        total += float(apart.sum())
        greatest = max(greatest, float(apart.max()))
        apart.diagonal(block.start).fill_(math.inf)
        least = min(least, float(apart.min()))
    return points.new_tensor([least, total / (count * (count - 1)), greatest]).mul_(cloud.radius)


def nearest_distances(points: Tensor) -> Tensor:
    """Find the distance of every point (K, d) to its nearest other one, (K,); infinite when there is no other."""
    cloud, parts = make_cloud(points), []
    for block in blocks(cloud):
        block.exclude(0.0).diagonal(block.start).fill_(math.inf)
        parts.append(block.squared.amin(dim=1).sqrt_())
    return torch.cat(parts).mul_(cloud.radius)
