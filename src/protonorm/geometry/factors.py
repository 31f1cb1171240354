"""Compression of tensors by truncated singular value decomposition."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from protonorm.geometry.points import to_float64
from protonorm.tensors import all_finite, prefixed

SMALLEST = torch.finfo(torch.float64).tiny


class Factors(NamedTuple):
    """Factors of a tensor (m, …) = u · diag(s) · v; its shape follows from theirs."""

    u: Tensor  # (m, q)
    s: Tensor  # (q,)
    v: Tensor  # (q, …)


def compress(tensors: Mapping[str, Tensor], energy: float) -> dict[str, Tensor]:
    """Replace each tensor by its factors `.u`, `.s` and `.v` where they are smaller; keep the others unchanged."""
    if not 0 < energy <= 1:
        raise ValueError(f"The energy to keep must lie above 0 and be at most 1, but it is {energy}.")
    encoded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        factors = factorise(tensor, energy)
        encoded |= {name: tensor} if factors is None else prefixed(name, factors._asdict())
    return encoded


def decompress(encoded: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Rebuild the named tensors from the output of `compress`; names tell a parameter called `u` from a factor."""
    return {
        name: encoded[name] if name in encoded else product(Factors(*(encoded[f"{name}.{tag}"] for tag in "usv")))
        for name in names
    }


def largest_rank(shape: Sequence[int]) -> int:
    """Return the largest rank q at which factors are smaller than a tensor (m, …): q (m + n + 1) < m n; 0 if none."""
    if len(shape) < 2:
        return 0
    m, n = shape[0], prod(shape[1:])
    return max(0, (m * n - 1) // (m + n + 1))


def factorise(tensor: Tensor, energy: float) -> Factors | None:
    """Truncate a tensor (m, …), as a matrix (m, n), to the rank that keeps a share of ‖·‖²; None if not smaller.

    The squared error is at most (1 − energy)·‖tensor‖². A convolution (out, in, kh, kw) is a matrix with `out` rows.
    """
    largest = largest_rank(tensor.shape)
    if not largest or not tensor.is_floating_point():
        return None
    matrix = to_float64(tensor).flatten(1)
    if not all_finite(matrix):
        raise ValueError("A tensor with numbers that are not finite has no factors.")
    u, s, v = singular(matrix)
    q = rank(s, energy)
    if q > largest:
        return None
    shaped = Factors(u[:, :q], s[:q], v[:q].reshape(q, *tensor.shape[1:]))
    return Factors(*(part.to(tensor).contiguous() for part in shaped))  # contiguous, or sums differ in their last bits


def singular(matrix: Tensor) -> Factors:
    """Decompose a matrix (m, n) into u (m, k), s (k,) and v (k, n), k = min(m, n), in descending order of s.

    The eigenvectors of the smaller Gram matrix take a fifth of the time of a general decomposition. In float64 the only
    loss, inexact singular values below 10⁻⁸ of the largest, is irrelevant for float32 weights.
    """
    m, n = matrix.shape
    peak = matrix.abs().max().clamp(min=SMALLEST)
    wide = (matrix if m <= n else matrix.T) / peak  # so that squares neither overflow nor underflow
    axes = torch.linalg.eigh(wide @ wide.T).eigenvectors.flip(1)  # (k, k)
    scaled = axes.T @ wide  # (k, max(m, n)), rows s·v
    s = torch.linalg.vector_norm(scaled, dim=1)
    rows = scaled / s.clamp(min=SMALLEST).unsqueeze(1)
    return Factors(axes, s * peak, rows) if m <= n else Factors(rows.T, s * peak, axes.T)


def rank(s: Tensor, energy: float) -> int:
    """Return the number of leading singular values (k,) whose squares reach a share of all squares; at least 1."""
    energies = (s / s.max().clamp(min=SMALLEST)).square().cumsum(0)
    return int((energies < energy * energies[-1]).sum()) + 1


def product(factors: Factors) -> Tensor:
    """Multiply u (m, q), s (q,) and v (q, …) to a tensor (m, …)."""
    u, s, v = factors
    matrix = (to_float64(u) * to_float64(s)) @ to_float64(v).flatten(1)
    return matrix.to(u).reshape(len(u), *v.shape[1:])
