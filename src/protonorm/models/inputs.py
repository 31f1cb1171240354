"""What networks are made for: (C, H, W) for pictures, (D,) for vectors, (L, V) for L tokens of V different ones."""

from __future__ import annotations

import torch
from torch import Tensor


def vector_length(shape: tuple[int, ...], name: str) -> int:
    """Give the length of a vector (D,), or refuse another shape."""
    if len(shape) != 1:
        raise ValueError(f"The network {name!r} takes vectors (D,), but the data set has samples of shape {shape}.")
    return shape[0]


def token_count(shape: tuple[int, ...], name: str) -> int:
    """Count the different tokens of a shape (L, V), or refuse another shape."""
    if len(shape) != 2:
        raise ValueError(
            f"The network {name!r} takes tokens (L, V): texts of L tokens, of V different ones; "
            f"but the data set has samples of shape {shape}."
        )
    return shape[1]


def random_batch(count: int, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """Draw samples of a shape: numbers of N(0, 1), or any tokens (count, L)."""
    if len(shape) == 2:
        return torch.randint(shape[1], (count, shape[0]), generator=generator)
    return torch.randn(count, *shape, generator=generator)
