"""Points for the tests, and the plain difference forms that the fast code is compared with."""

import math

import numpy as np
import torch
from torch import Tensor


def drawn(count: int, dimension: int, seed: int = 0) -> Tensor:
    """Draw normal points, (K, d) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dimension, generator=generator, dtype=torch.float64)


def on_sphere(count: int, dimension: int, seed: int = 0) -> Tensor:
    points = drawn(count, dimension, seed)
    return points / points.norm(dim=1, keepdim=True)


def rotation(dimension: int, seed: int = 0) -> Tensor:
    """Draw an orthogonal matrix (d, d)."""
    return torch.linalg.qr(drawn(dimension, dimension, seed)).Q


def simplex_side(count: int) -> float:
    """Return the distance of two corners of the regular simplex.

    K unit vectors that sum to zero with equal products g have 0 = ‖Σ‖² = K + K(K−1)g, so g = −1/(K−1) and
    dist² = 2 − 2g = 2K/(K−1).
    """
    return math.sqrt(2 * count / (count - 1))


def plain_energy(points: Tensor, s: float) -> Tensor:
    """Sum over pairs from differences (K, K, d), with a gradient."""
    first, second = torch.triu_indices(len(points), len(points), 1)
    apart = (points[first] - points[second]).norm(dim=1)
    return -apart.log().sum() if s == 0 else (apart**-s).sum()


def plain_forces(points: np.ndarray) -> np.ndarray:
    """Compute Eq. 11 from differences, (K, d)."""
    gaps = points[:, None] - points[None]
    squares = (gaps**2).sum(2)
    np.fill_diagonal(squares, np.inf)
    return (gaps / squares[:, :, None]).sum(1)


CUBE = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3) / math.sqrt(3)
OCTAHEDRON = torch.cat((torch.eye(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)))
