"""Named arrays of a record, stored compactly with a checksum, and accuracies from counts. Does not import torch."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from protonorm.core.text import digits
from protonorm.files import BLANK, HEADER, check_stamp, damaged, seal
from protonorm.metrics import METRICS, metrics
from protonorm.metrics.base import Integers
from protonorm.runs.layout import read_tensor_file
from protonorm.runs.schema import Accuracy

Arrays = dict[str, NDArray[Any]]

PARTS = ("validation", "test")  # evaluated parts of the samples
CACHE = 2**26  # bytes of cached round arrays per `Run`
SHARPNESS = "sharpness"  # inverse temperature 1/T of a client's rules in `joint`; NaN without samples to fit it
WORST = 0.1  # share of clients averaged by `worst`
MEASURES = ("support", "correct", "predicted", *METRICS, SHARPNESS)


class ArrayCache(dict[int, Arrays]):
    """Arrays by round, limited in bytes; it is cleared when full."""

    limit, size = CACHE, 0

    def __setitem__(self, round: int, arrays: Arrays) -> None:
        size = sum(array.nbytes for array in arrays.values())
        if self.size + size > self.limit:
            self.clear()
            self.size = 0
        super().__setitem__(round, arrays)
        self.size += size


def encode_arrays(arrays: Mapping[str, NDArray[Any]], stamp: str, size: int = 0) -> bytes:
    """Encode arrays with a stamp and a checksum, padded to `size` bytes; integers use the smallest dtype."""
    compact = {name: np.ascontiguousarray(_small(array)) for name, array in arrays.items()}
    content: bytes = safetensors.numpy.save(compact, {"stamp": f"{stamp} {BLANK}"})
    if (room := size - len(content)) > 0:  # safetensors allows trailing spaces in the header
        header = HEADER + int.from_bytes(content[:HEADER], "little")
        prefix = (header - HEADER + room).to_bytes(HEADER, "little") + content[HEADER:header]
        content = prefix + b" " * room + content[header:]
    return bytes(seal(content, stamp))


def read_arrays(path: Path, stamp: str, content: bytes | None = None) -> Arrays:
    """Decode a file of arrays of a run, or `content` from it, with integers as int64.

    Raises:
        ValueError: If it is damaged or its stamp differs.
    """
    content = read_tensor_file(path, stamp) if content is None else check_stamp(content, path, stamp)
    try:
        arrays = safetensors.numpy.load(content)
    except (SafetensorError, ValueError, TypeError) as error:
        raise damaged(path, f"it is not a whole tensor file ({error})") from error
    return {name: array.astype(np.int64) if array.dtype.kind in "iu" else array for name, array in arrays.items()}


def unfit(evaluation: Arrays, clients: int, classes: int) -> list[str]:
    """List the names of a round's invalid arrays: unknown, of the wrong shape or dtype, or with values out of range."""
    evaluated = evaluation["ids"].size if "ids" in evaluation else clients
    margins = evaluation["margins.classes"].size if "margins.classes" in evaluation else -1
    sizes = {"clients": evaluated, "classes": classes}

    def fits(name: str, array: NDArray[Any]) -> bool:
        if name == "margins":
            return array.shape == (margins,) and array.dtype.kind == "f"
        if name in ("ids", "margins.classes"):
            return _counts(array, array.size, clients if name == "ids" else classes)
        part, kind, unit, *_ = (*name.split(".", 3), "", "")
        size, support = sizes.get(unit, -1), evaluation.get(f"{part}.support.{unit}", np.zeros(0))
        if part not in (*PARTS, "common") or kind not in MEASURES:
            return False
        if kind in (*METRICS, SHARPNESS):
            limit = 1 if kind in METRICS and metrics()[kind].share else np.finfo(np.float32).max
            outside = (array < 0) | (array > limit)
            return array.shape == (size,) and array.dtype.kind == "f" and not bool(outside.any())
        if unit == "cells":
            shape = (evaluated, classes)
            return kind in ("support", "correct") and _counts(array, shape) and bool((array <= support).all())
        fits_support = kind != "correct" or (support.shape == array.shape and bool((array <= support).all()))
        return _counts(array, size) and fits_support

    return [name for name, array in evaluation.items() if not fits(name, array)]


def _counts(array: NDArray[Any], size: int | tuple[int, int], below: int | None = None) -> bool:
    """Return whether an array holds `size` non-negative integers, less than `below` if given."""
    if array.shape != (size if isinstance(size, tuple) else (size,)) or array.dtype.kind != "i":
        return False
    return not array.size or (array.min() >= 0 and (below is None or bool(array.max() < below)))


def _small(array: NDArray[Any]) -> NDArray[Any]:
    """Convert an integer array to the smallest dtype that holds its values."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    low, high = int(array.min()), int(array.max())
    kinds = (np.uint8, np.uint16, np.uint32) if low >= 0 else (np.int8, np.int16, np.int32)
    fitting = (kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return array.astype(next(fitting, np.int64))


def accuracy_of(correct: Integers, support: Integers, **metric_values: Any) -> Accuracy | None:
    """Compute accuracies from correct predictions and samples (M,), beside other metrics; None without samples."""
    tested = support > 0
    if not tested.any():
        return None
    shares = np.sort(correct[tested] / support[tested])
    worst = shares[: math.ceil(WORST * len(shares))]
    return Accuracy(
        pooled=digits(int(correct.sum()) / int(support.sum())),
        mean=digits(shares.mean()),
        worst=digits(worst.mean()),
        p10=digits(np.percentile(shares, 10)),
        **{name: None if value is None else digits(value) for name, value in metric_values.items()},
    )


def ratio(correct: NDArray[Any], support: Integers) -> NDArray[np.float64]:
    """Compute accuracies from counts; NaN without samples."""
    shares = np.full(support.shape, np.nan)
    np.divide(correct, support, out=shares, where=support > 0)
    return shares


def majority_correct(train: Integers, test: Integers) -> Integers:
    """Count the correct predictions (M, K) of each client's majority training class, from counts (M, K)."""
    correct = np.zeros_like(test)
    rows, guess = np.arange(len(test)), train.argmax(1)
    correct[rows, guess] = test[rows, guess]
    return correct
