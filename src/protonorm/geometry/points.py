"""Convert a caller's points to float64 tensors and back, and put points on the sphere."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.tensors import all_finite

Array = TypeVar("Array", Tensor, NDArray[Any])


def read_points(array: Tensor | NDArray[Any], name: str = "prototypes") -> Tensor:
    """Read a (K, d) array of finite floats as a float64 tensor, or refuse it."""
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
    """Convert to float64 on the same device, or on the CPU where the device has no float64; may share memory."""
    if not isinstance(array, Tensor):
        return torch.from_numpy(np.array(array, dtype=np.float64))
    detached = array.detach()
    return detached.cpu().double() if array.device.type == "mps" else detached.double()


def convert_back(points: Tensor, like: Array) -> Array:
    """Convert a result to the kind, type and device of the array the caller gave."""
    if isinstance(like, Tensor):
        return points.to(device=like.device, dtype=like.dtype)
    return points.cpu().numpy().astype(like.dtype)


def unit(points: Tensor) -> Tensor:
    """Divide every row by its norm (Eq. 14), huge and tiny ones alike; a zero row stays zero."""
    largest = points.abs().amax(dim=1, keepdim=True)
    scaled = points / torch.where(largest > 0, largest, 1.0)  # so that no square overflows or vanishes
    rows: Tensor = scaled / scaled.norm(dim=1, keepdim=True).clamp(min=1.0)  # the norm is 0 or at least 1
    return rows
