"""Unit vectors that stand for classes: where they begin, and how they follow what clients measure."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from protonorm.geometry.alignment import align
from protonorm.geometry.points import to_float64, unit


def orthogonal(num_classes: int, feature_dim: int) -> Tensor:
    """Draw unit vectors (K, d): orthonormal if K ≤ d, else the rows of a matrix whose columns are orthonormal."""
    return unit(nn.init.orthogonal_(torch.empty(num_classes, feature_dim)))


def on_circle(num_classes: int, feature_dim: int) -> Tensor:
    """Place unit vectors (K, 2) at equal angles on the circle, the first at (1, 0)."""
    if feature_dim != 2:
        raise ValueError(f"Only vectors of two numbers stand on the circle, but feature_dim is {feature_dim}.")
    angles = torch.arange(num_classes, dtype=torch.float64) * (2 * math.pi / num_classes)
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def in_blocks(num_classes: int, feature_dim: int) -> Tensor:
    """Give each class a run of coordinates of its own: unit vectors (K, d), orthogonal, with no negative number."""
    if num_classes > feature_dim:
        raise ValueError(f"{num_classes} classes do not have coordinates of their own: feature_dim is {feature_dim}.")
    coordinates = torch.arange(feature_dim)
    vectors = torch.zeros(num_classes, feature_dim)
    vectors[coordinates * num_classes // feature_dim, coordinates] = 1
    return unit(vectors)


def weighted_sums(classes: Tensor, prototypes: Tensor, counts: Tensor, num_classes: int) -> Tensor:
    """Lay prototypes (K_i, d) of classes (K_i,), times their counts (K_i,), out over all classes: (K, d) in float64."""
    sums = torch.zeros(num_classes, prototypes.shape[1], dtype=torch.float64)
    sums[classes] = prototypes.double() * counts.unsqueeze(1)
    return sums


def smoothed(directions: Tensor, sums: Tensor, rho: float) -> Tensor:
    """Move unit vectors W (K, d) towards sums a (K, d): W_j becomes the direction of ρ W_j + (1 − ρ) a_j/‖a_j‖.

    Where a_j is zero, or both cancel, there is no new direction and W_j stays as it is.
    """
    towards = unit(to_float64(sums))
    moved = rho * to_float64(directions) + (1 - rho) * towards
    stays = (towards == 0).all(dim=1) | (moved == 0).all(dim=1)
    return torch.where(stays.unsqueeze(1), directions, unit(moved).to(directions))


def equally_spread(num_classes: int, feature_dim: int, seed: int) -> Tensor:
    """Spread unit vectors (K, d) out from a random start: the vertices of a simplex if K ≤ d + 1."""
    return _spread(num_classes, feature_dim, seed).clone()


@lru_cache(maxsize=4)
def _spread(num_classes: int, feature_dim: int, seed: int) -> Tensor:
    """Find the vectors once for all clients of a process: where K > d + 1 it takes a second or more."""
    start = torch.randn(num_classes, feature_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return align(start).prototypes.float()
