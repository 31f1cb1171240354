"""Heads that follow from second moments of frozen features: ridge, Gaussian, and personal ridge.

A sample's point is x̃ = (x/‖x‖, 1), of P = D + 1 numbers. X (n, P) are a client's points, Y (n, K) its labels, one-hot;
its statistics are the Gram matrix G = XᵀX, of which a triangle is sent, and the moments R = XᵀY. The last row of G has
the sum of the points, that of R the samples of each class. Everything is solved in float64.
"""

import math
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, pad

from protonorm.core.privacy import HALF
from protonorm.geometry.temperature import fit_inverse_temperature

GRID = torch.logspace(-2, 4, 13, dtype=torch.float64)  # candidates for μ
STRENGTHS = (0.01, 0.03, 0.1, 0.3)  # candidates for λ of the others' ridge
ROUNDED = 1e-12  # eigenvalues below this share of the largest are rounding errors

Covariance = Literal["total", "within"]


def points(features: Tensor, projected: int | None = None) -> Tensor:
    """Map features (n, D) to points (n, P): unit vectors, perhaps projected to D' before, and a constant 1."""
    if projected is not None:
        features = features @ projection(features.shape[1], projected).to(features)
    return pad(normalize(features), (0, 1), value=1.0)


@cache
def projection(width: int, projected: int) -> Tensor:
    """Return random orthonormal directions (D, D'), equal for all clients and runs."""
    random = torch.Generator().manual_seed(0)
    directions: Tensor = torch.linalg.qr(torch.randn(width, projected, generator=random, dtype=torch.float64)).Q
    return directions


def triangle(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix (P, P), row by row: P(P + 1)/2 numbers."""
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def square(triangle: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix (P, P) of an upper triangle, in float64."""
    matrix, (rows, columns) = torch.zeros(size, size, dtype=torch.float64), torch.triu_indices(size, size)
    matrix[rows, columns] = matrix[columns, rows] = triangle.double()
    return matrix


def ridge(gram: Tensor, moments: Tensor, lam: float) -> Tensor:
    """Solve (G + λI) W = R for W (P, K); λ grows tenfold while rounding leaves the matrix not positive definite."""
    while True:
        regular = gram.double().clone()
        regular.diagonal().add_(lam)
        factor, failed = torch.linalg.cholesky_ex(regular)
        if not failed:
            return torch.cholesky_solve(moments.double(), factor)
        lam *= 10


def denoised(gram: Tensor, moments: Tensor, lam: float, noise: float) -> tuple[Tensor, Tensor, float]:
    """Return G, R and λ of a ridge: for noise of variance σ², without negative eigenvalues, and λ ≥ 2σ√P.

    2σ√P is the largest eigenvalue of the noise alone: what is below it tells nothing.
    """
    if not noise:
        return gram, moments, lam
    s, v = torch.linalg.eigh(gram.double())
    return (v * s.clamp(min=0)) @ v.T, moments, max(lam, 2 * math.sqrt(noise * len(gram)))


def gaussian(gram: Tensor, moments: Tensor, gamma: float, covariance: Covariance, noise: float = 0.0) -> Tensor:
    """Compute the linear head (P, K) of Gaussian classes with one covariance S: w_j = (S + γI)⁻¹m_j.

    The bias is −½ m_jᵀw_j + log(N_j/N). S is the total covariance, with N − 1, or that within classes, with N − K' for
    K' classes. Columns of absent classes are zero. With noise all classes count as present.
    """
    gram, moments = gram.double(), moments.double()
    counts, total = moments[-1], gram[-1, -1]  # (K,), ()
    if noise:
        counts, total = counts.clamp(min=2 * HALF * math.sqrt(2 * noise)), total.clamp(min=1)  # twice their noise
    known = counts > 0
    means = moments[:-1] / counts.where(known, torch.ones_like(counts))  # (D, K)
    centre = gram[:-1, -1:] / total
    between = (means * counts) @ means.T if covariance == "within" else total * centre @ centre.T
    freedom = total - (int(known.sum()) if covariance == "within" else 1)
    freedom = freedom.clamp(min=1)
    weights = ridge(*denoised((gram[:-1, :-1] - between) / freedom, means, gamma, noise / float(freedom) ** 2))
    bias = (counts / total).log().where(known, torch.zeros_like(counts)) - (means * weights).sum(0) / 2
    return torch.cat([weights, bias.unsqueeze(0)])


class Personal(NamedTuple):
    """Personal ridge regression, and what it says of each sample when fitted without that sample."""

    weights: Tensor  # W (P, K)
    scores: Tensor  # (n, K), leave-one-out
    error: float  # mean over samples of the squared error of `scores`


def personal(x: Tensor, y: Tensor, prior: Tensor, known: Tensor, grid: Tensor = GRID) -> Personal:
    """Minimise ‖XW − Y‖² + μ‖W − W₋‖² for X (n, P), Y (n, K) and a solution W₋ (P, K) that X had no part in.

    μ is the one with the least squared error of leave-one-out, chosen separately for the classes that W₋ knows (K,)
    and for all others: these must be learned from own samples alone, however good W₋ is. With K = XXᵀ = U diag(s) Uᵀ,
    W = W₋ + XᵀU diag(1/(s + μ)) Uᵀ(Y − XW₋), and leave-one-out divides the residuals by 1 − A_jj for
    A = U diag(s/(s + μ)) Uᵀ.
    """
    u, s = left_basis(x)
    residual = y - x @ prior
    projected = u.T @ residual  # (r, K)
    shrunk = s / (s + grid.unsqueeze(1))  # (μ, r)
    complement = 1 - u.square() @ shrunk.T  # (n, μ): 1 − A_jj
    left_out = [
        (residual - u @ (row.unsqueeze(1) * projected)) / complement[:, [i]] for i, row in enumerate(shrunk)
    ]  # (n, K)
    errors = torch.stack([residuals.square().sum(0) for residuals in left_out])  # (μ, K)
    best = torch.where(known, errors[:, known].sum(1).argmin(), errors[:, ~known].sum(1).argmin())  # (K,)
    scores = y - torch.stack(left_out).gather(0, best.expand(1, len(y), -1)).squeeze(0)
    weights = prior + x.T @ (u @ (projected / (s.unsqueeze(1) + grid[best])))
    return Personal(weights, scores, float((y - scores).square().sum()) / len(y))


def left_basis(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the left singular vectors U (n, r) of X (n, P), and the squares s (r,) of its singular values."""
    if len(x) <= x.shape[1]:
        s, u = torch.linalg.eigh(x @ x.T)
        return u, s.clamp(min=0)
    s, v = torch.linalg.eigh(x.T @ x)
    kept = s > ROUNDED * s[-1]
    return x @ v[:, kept] / s[kept].sqrt(), s[kept]


def share(scores: Tensor, other_scores: Tensor, y: Tensor) -> float:
    """Return the w from 0 to 1 for which w·one + (1 − w)·other, scores (n, K), is nearest to the labels Y (n, K)."""
    difference = scores - other_scores
    size = float(difference.square().sum())
    return min(max(float(((y - other_scores) * difference).sum()) / size, 0.0), 1.0) if size else 0.5


def inverse_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the factor of scores (n, K) whose softmax fits labels (n,) best."""
    return float(fit_inverse_temperature(scores.unsqueeze(0), labels, torch.ones(len(labels), dtype=torch.bool)))


def log_loss(scores: Tensor, labels: Tensor) -> float:
    """Return the mean −log probability of labels (n,) by scores (n, K) at the temperature that fits best."""
    return float(cross_entropy(inverse_temperature(scores, labels) * scores, labels))
