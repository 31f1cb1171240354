"""Labels as people have them, numbers or words, to numbers from 0 and names of classes. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_CLASSES = 10_000


def encode_labels(values: NDArray[Any], where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number the different labels (N,) in their order, and name them; refuse what cannot be classes."""
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{where} has labels of shape {values.shape}; expected (N,).")
    if values.dtype.kind == "f":
        values = _whole_numbers(values, where)
    elif values.dtype.kind not in "iub":
        values = values.astype(str)
    found, labels = np.unique(values, return_inverse=True)
    names = tuple(map(str, found.tolist()))
    if len(names) > min(MOST_CLASSES, max(2, len(values) // 2)):
        raise ValueError(
            f"{where} has {len(names)} different labels for {len(values)} samples; expected classes, of which each has "
            f"several samples, and {MOST_CLASSES} at most."
        )
    return labels.astype(np.int64), names


def named_labels(values: NDArray[Any], classes: NDArray[Any], where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Check labels that are numbers of named classes."""
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        raise ValueError(f"{where} has labels of shape {values.shape} and type {values.dtype}; expected numbers (N,).")
    if classes.ndim != 1 or classes.dtype.kind != "U" or len(set(classes.tolist())) < max(1, len(classes)):
        raise ValueError(f"{where} needs `classes` of different names (K,).")
    if values.min() < 0 or values.max() >= len(classes):
        raise ValueError(
            f"{where} has labels from {values.min()} to {values.max()}, but {len(classes)} classes are named."
        )
    return values.astype(np.int64), tuple(classes.tolist())


def refuse_one_class(classes: Sequence[str], where: str) -> None:
    """Refuse data that cannot be an experiment's, as they have one class only."""
    if len(classes) < 2:
        raise ValueError(f"{where} has one class only ({classes[0]}); there is nothing to tell apart.")


def _whole_numbers(values: NDArray[Any], where: str) -> NDArray[np.int64]:
    if not np.isfinite(values).all():
        raise ValueError(f"{where} has labels that are NaN or infinite.")
    if (np.abs(values) > 2**53).any() or (values != np.floor(values)).any():
        odd = next(float(value) for value in values if value != np.floor(value) or abs(value) > 2**53)
        raise ValueError(f"{where} has the label {odd:g}; expected classes, which are whole numbers or words.")
    return values.astype(np.int64)
