"""Closed-form optima: the nearest regular simplex for K ≤ d + 1, K equally spaced points for d = 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protonorm.geometry.points import unit


def has_closed_form(count: int, dimension: int) -> bool:
    """Tell whether the best arrangement of K points in d dimensions is known in closed form."""
    return count <= dimension + 1 or dimension == 2


def require_closed_form(count: int, dimension: int) -> None:
    """Refuse K points in d dimensions whose best arrangement is not known in closed form."""
    if not has_closed_form(count, dimension):
        raise ValueError(
            f"No closed form is known for {count} prototypes in {dimension} dimensions: method 'exact' needs "
            f"K ≤ d + 1 or d = 2; use 'descent' (or 'auto', which chooses)."
        )


def solve(points: Tensor) -> Tensor:
    """Find the optimum nearest to unit (or zero) points (K, d), whatever the exponent s."""
    count, dimension = points.shape
    require_closed_form(count, dimension)
    return simplex(points) if count <= dimension + 1 else polygon(points)


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
    """Space the points equally on the circle, in their angular order, turned to be as near to them as possible."""
    plane = torch.complex(points[:, 0], points[:, 1])  # (K,)
    order = plane.angle().argsort(stable=True)
    steps = torch.arange(len(points), dtype=torch.float64, device=points.device) * (2 * math.pi / len(points))
    turn = (plane[order] * torch.polar(torch.ones_like(steps), -steps)).sum().angle()
    angles = torch.empty_like(steps)
    angles[order] = steps + turn
    return torch.stack((angles.cos(), angles.sin()), dim=1)
