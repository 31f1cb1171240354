"""Points: validation of input arrays, normalisation to the unit sphere, and pairwise distances.

Distances are computed from blocks of rows of the Gram matrix: no (K, K, d) tensor is built, and only some rows of the
(K, K) matrix exist at a time, so memory grows with K rather than K². Pairs so close that the Gram form would lose their
distance to cancellation are measured by their difference.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.tensors import all_finite

Array = TypeVar("Array", Tensor, NDArray[Any])
CLOSE = 1e-4  # squared distance below which a pair is close, relative to the radius of the cloud
BLOCK = 1 << 22  # values in a block: 32 MB
SAME = 1e-12  # distance below which unit vectors are equal up to rounding


def read_points(array: Tensor | NDArray[Any], name: str = "prototypes") -> Tensor:
    """Convert a (K, d) array of finite floats to a float64 tensor; raise if it is anything else."""
    if not isinstance(array, Tensor | np.ndarray):
        raise ValueError(f"{name} must be a torch tensor or a NumPy array, not {type(array).__name__}.")
    if array.ndim != 2:
        raise ValueError(f"{name} must have two axes, (K, d), but their shape is {tuple(array.shape)}.")
    if 0 in array.shape:
        raise ValueError(f"{name} must hold at least one vector of at least one number, not {tuple(array.shape)}.")
    floating = array.is_floating_point() if isinstance(array, Tensor) else np.issubdtype(array.dtype, np.floating)
    if not floating:
        raise ValueError(f"{name} must be of a floating type, not {array.dtype}.")
    points = to_float64(array)
    if not all_finite(points):
        raise ValueError(f"{name} must be finite, but some are NaN or infinite.")
    return points


def to_float64(array: Tensor | NDArray[Any]) -> Tensor:
    """Convert to float64 on the same device, or on the CPU if the device has no float64; may share memory."""
    if not isinstance(array, Tensor):
        return torch.from_numpy(np.array(array, dtype=np.float64))
    detached = array.detach()
    return detached.cpu().double() if array.device.type == "mps" else detached.double()


def convert_back(points: Tensor, like: Array) -> Array:
    """Convert a result to the type and device of the caller's array."""
    if isinstance(like, Tensor):
        return points.to(device=like.device, dtype=like.dtype)
    return points.cpu().numpy().astype(like.dtype)


def unit(points: Tensor) -> Tensor:
    """Divide every row by its norm (Eq. 14), without overflow or underflow; a zero row stays zero."""
    largest = points.abs().amax(dim=1, keepdim=True)
    scaled = points / torch.where(largest > 0, largest, 1.0)  # so that no square overflows or underflows
    rows: Tensor = scaled / scaled.norm(dim=1, keepdim=True).clamp(min=1.0)  # the norm is 0 or at least 1
    return rows


class Cloud(NamedTuple):
    """Points, and the same points centred and scaled into the unit ball, where rounding errors are smallest."""

    points: Tensor  # (K, d)
    ball: Tensor  # (K, d) = (points − centre) / radius
    radius: float

    def differences(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Compute the differences of pairs of points, (P, d), in units of the radius."""
        return (self.points[rows] - self.points[columns]).div_(self.radius)


class Block(NamedTuple):
    """Squared distances of some rows to all points, in units of the squared radius."""

    start: int  # index of the first row
    squared: Tensor  # (b, K), infinite for a point and itself or a coincident point
    near: Tensor  # (P, 2) close pairs (row in the block, column)
    coincident: Tensor  # (P', 2) close pairs that coincide

    def exclude(self, value: float) -> Tensor:
        """Set the entries of identical and coincident points to a value."""
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
    """Yield the squared distances of a cloud in blocks of rows."""
    norms, ones = cloud.ball.square().sum(dim=1, keepdim=True), torch.ones_like(cloud.ball[:, :1])
    left, right = torch.cat((-2 * cloud.ball, norms, ones), dim=1), torch.cat((cloud.ball, ones, norms), dim=1)
    height = max(1, BLOCK // len(left))
    for start in range(0, len(left), height):
        squared = left[start : start + height] @ right.T  # |x|² + |y|² − 2 x·y in a single product
        squared.diagonal(start).fill_(math.inf)
        close = (squared <= CLOSE).nonzero()
        for rows, columns in chunks(close, cloud):
            squared[rows, columns] = cloud.differences(rows + start, columns).square_().sum(dim=1)
        coincident = close[squared[close[:, 0], close[:, 1]] == 0] if len(close) else close
        block = Block(start, squared, close, coincident)
        block.exclude(math.inf)
        yield block


def chunks(pairs: Tensor, cloud: Cloud) -> Iterator[tuple[Tensor, Tensor]]:
    """Split a list of pairs (P, 2) so that their differences fit in a block."""
    size = max(1, BLOCK // cloud.points.shape[1])
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size, 0], pairs[start : start + size, 1]


def pair_distances(points: Tensor) -> Tensor:
    """Compute the distances of all pairs j < k of (K, d) points, (K(K−1)/2,), row by row."""
    cloud, parts = make_cloud(points), []
    for block in blocks(cloud):
        above = torch.ones_like(block.squared, dtype=torch.bool).triu_(block.start + 1)
        parts.append(block.exclude(0.0)[above].sqrt_())
    return torch.cat(parts).mul_(cloud.radius)


def distance_range(points: Tensor) -> Tensor:
    """Compute minimum, mean and maximum distance of (K, d) points, (3,), block by block; NaN if there is no pair."""
    cloud, count = make_cloud(points), len(points)
    if count < 2:
        return points.new_full((3,), math.nan)
    smallest, total, largest = math.inf, 0.0, 0.0
    for block in blocks(cloud):
        distances = block.exclude(0.0).sqrt_()
        total += float(distances.sum())
        largest = max(largest, float(distances.max()))
        distances.diagonal(block.start).fill_(math.inf)
        smallest = min(smallest, float(distances.min()))
    return points.new_tensor([smallest, total / (count * (count - 1)), largest]).mul_(cloud.radius)


def nearest_distances(points: Tensor) -> Tensor:
    """Compute the distance of every point (K, d) to its nearest neighbour, (K,); infinite if there is none."""
    cloud, parts = make_cloud(points), []
    for block in blocks(cloud):
        block.exclude(0.0).diagonal(block.start).fill_(math.inf)
        parts.append(block.squared.amin(dim=1).sqrt_())
    return torch.cat(parts).mul_(cloud.radius)


def find_duplicates(points: Tensor) -> Tensor:
    """Mark the unit points (K,) that coincide with an earlier point."""
    marks, cloud = points.new_zeros(len(points), dtype=torch.bool), make_cloud(points)
    for block in blocks(cloud):
        rows, columns = block.near[:, 0], block.near[:, 1]
        distances = block.exclude(0.0)[rows, columns].sqrt_() * cloud.radius
        equal = (distances <= SAME) & (columns < rows + block.start)
        marks[rows[equal] + block.start] = True
    return marks
