"""How vectors lie to each other, whatever their place and direction: arrangements compared, and turned to each other.

Rows that do not count are marked, not cut out: no shape depends on the numbers in a tensor.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Comparison = Literal["cka", "distances", "squared-distances"]


def structural_loss(x: Tensor, y: Tensor, rows: Tensor, by: Comparison) -> Tensor:
    """Give 1 − the similarity of two arrangements x (n, d) and y (n, d), of which rows (n,) count.

    It is zero for equal arrangements, whatever their place, direction and size; also where there is nothing to compare:
    fewer than two rows, or rows that coincide.
    """
    one, two = (gram(x, rows), gram(y, rows)) if by == "cka" else (distances(x, rows), distances(y, rows))
    if by == "squared-distances":
        one, two = one.square(), two.square()
    sizes = torch.linalg.vector_norm(one) * torch.linalg.vector_norm(two)  # its gradient at zero is zero
    comparable = sizes > 0
    similarity = (one * two).sum() / torch.where(comparable, sizes, 1.0)
    return torch.where(comparable, 1 - similarity, 0.0)


def gram(x: Tensor, rows: Tensor) -> Tensor:
    """Multiply the rows of x (n, d) that count, less their mean, with each other: (n, n), zero for the others."""
    counted = rows.to(x.dtype).unsqueeze(1)  # (n, 1)
    first = rows.to(torch.uint8).argmax(dim=0, keepdim=True)  # (1,); a tensor of no axis would be read to index
    moved = x - x[first].detach()  # less the first that counts: rows that coincide become zero
    mean = (counted * moved).sum(dim=0) / counted.sum().clamp(min=1.0)
    centred = counted * (moved - mean)
    return centred @ centred.T


def distances(x: Tensor, rows: Tensor) -> Tensor:
    """Measure the distances between the rows of x (n, d) that count: (n, n), zero for the others."""
    counted = rows.to(x.dtype).unsqueeze(1)
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") * counted * counted.T


def batch_means(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Average features z (B, d) by class y (B,), with their gradient: (K, d), and which classes there are (K,)."""
    sums = z.new_zeros(num_classes, z.shape[1]).index_add(0, y, z)
    counts = z.new_zeros(num_classes).index_add(0, y, torch.ones_like(y, dtype=z.dtype))
    return sums / counts.clamp(min=1.0).unsqueeze(1), counts > 0


def turned(x: Tensor, y: Tensor) -> Tensor:
    """Turn the rows of x (n, d) about the origin so that they come nearest to those of y (n, d): x·R, R orthogonal.

    R = U·Vᵀ of the singular value decomposition of xᵀ·y; both span at most n dimensions, and only there R matters.
    """
    across, left = torch.linalg.qr(x.T)  # (d, k), (k, n)
    along, right = torch.linalg.qr(y.T)
    u, _, v = torch.linalg.svd(left @ right.T, full_matrices=False)  # (k, k) of xᵀ·y between the two bases
    rows: Tensor = x @ across @ u @ v @ along.T
    return rows
