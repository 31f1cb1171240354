"""Algorithm 1 as its text reads: the differences of all pairs of prototypes as one (K, K, d) tensor.

The stopping rule, the decay and the small numbers are those of the authors' program.
"""

from __future__ import annotations

import torch
from torch import Tensor

ETA, MU, DECAY, STEPS, PATIENCE, WARM_UP, DIGITS = 0.1, 0.9, 0.95, 500, 10, 10, 4
SMALL, DIAGONAL = 1e-10, 1e-6


def align_by_differences(vectors: Tensor) -> tuple[Tensor, int]:
    """Align vectors (K, d): unit prototypes, and the number of updates."""
    points = vectors / vectors.norm(dim=1, keepdim=True)
    velocity, rate, previous, same = torch.zeros_like(points), ETA, 0.0, 0
    for t in range(STEPS):
        force = force_by_differences(points)
        velocity = MU * velocity + rate * force  # Eq. 12
        points = points + velocity  # Eq. 13
        points = points / points.norm(dim=1, keepdim=True)  # Eq. 14
        if t % 10 == 0:
            rate *= DECAY
        strength = round(float(force.norm(dim=1).mean()), DIGITS)
        same = same + 1 if t > WARM_UP and strength == previous else 0
        previous = strength
        if same == PATIENCE:
            return points, t + 1
    return points, STEPS


def force_by_differences(points: Tensor) -> Tensor:
    """Add up (c_j − c_k)/‖c_j − c_k‖² over k (Eq. 11)."""
    differences = points.unsqueeze(1) - points.unsqueeze(0)  # (K, K, d)
    squared = differences.square().sum(dim=2)
    squared.diagonal().add_(DIAGONAL)
    weights = 1 / (squared + SMALL)
    weights.fill_diagonal_(0.0)
    return (weights.unsqueeze(2) * differences).sum(dim=1)
