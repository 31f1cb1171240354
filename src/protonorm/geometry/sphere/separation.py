"""Move apart what no force can: coincident and zero points, and points that leave dimensions of the space unused.

A start from which the forces lead everywhere is returned as it is. The directions are fixed numbers of a generator of
their own, so equal input gives equal output and the global random state is not touched.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protonorm.geometry.points import unit
from protonorm.geometry.sphere.pairs import blocks, make_cloud

SAME = 1e-12  # unit vectors nearer than this are equal to rounding
FLAT = 1e-6  # a direction in which the points extend less than this, relative to the widest, is unused
NUDGE = 1e-3  # distance by which points are moved


def separate(points: Tensor) -> Tensor:
    """Give zero rows a fixed direction, and move all but the first of coincident unit rows a little."""
    zero = points.square().sum(dim=1) == 0
    noise = fixed_directions(points)
    points = torch.where(zero.unsqueeze(1), unit(noise), points)
    moved = unit(points + NUDGE * noise) if points.shape[1] > 1 else -points
    return torch.where(find_duplicates(points).unsqueeze(1), moved, points)


def find_duplicates(points: Tensor) -> Tensor:
    """Mark the points (K,) that coincide with an earlier one."""
    marks = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    cloud = make_cloud(points)
    for block in blocks(cloud):
        rows, columns = block.near[:, 0], block.near[:, 1]
        apart = block.exclude(0.0)[rows, columns].sqrt_() * cloud.radius
        equal = (apart <= SAME) & (columns < rows + block.start)
        marks[rows[equal] + block.start] = True
    return marks


def use_all_dimensions(points: Tensor) -> Tensor:
    """Move unit points a little into the dimensions they leave unused, where the force would stay zero for ever."""
    spread, axes = torch.linalg.eigh(points.T @ points)  # ascending squares of the extents
    unused = axes[:, spread <= FLAT**2 * spread[-1]]  # (d, m)
    if points.shape[1] - unused.shape[1] >= min(len(points) - 1, points.shape[1]):
        return points
    return unit(points + NUDGE * fixed_directions(points) @ unused @ unused.T)


def jitter(points: Tensor) -> Tensor:
    """Move all unit points a little, away from a place where the forces cancel."""
    return unit(points + NUDGE * fixed_directions(points))


def fixed_directions(points: Tensor) -> Tensor:
    """Draw one fixed direction of length about one for every point, (K, d)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(points.shape, generator=generator, dtype=torch.float64)
    return noise.to(points.device).div_(math.sqrt(points.shape[1]))
