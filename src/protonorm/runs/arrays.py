"""Arrays of a record: compact, named, and with a checksum. Nothing here needs torch.

population.safetensors   train (M, K), test (M, K): samples of each client and class
evaluations.bin          one block for each round: who was evaluated, with which counts; and the prototypes' margins
figures.safetensors      arrays for the figures, such as the first alignment's distances
prototypes/R.safetensors classes (K',) and prototypes (K', d) of round R
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from protonorm.files import BLANK, check_seal, damaged, read_sealed, replace, seal

Arrays = dict[str, NDArray[Any]]

PARTS = ("validation", "test")  # of the samples, that are evaluated
SHARES = ("balanced", "f1", "calibration")  # measures from 0 to 1; NaN for a client without samples
BESIDE = (*SHARES, "log_loss")  # measures of a client beside its accuracy
CACHE = 2**26  # bytes of rounds' arrays that a run that is read keeps in memory
SHARPNESS = "sharpness"  # 1/T of a client's rules in `joint`; NaN for a client that had nothing to fit it to
MEASURES = ("support", "correct", "predicted", *BESIDE, SHARPNESS)


class ArrayCache:
    """Arrays of rounds in memory, up to a number of bytes; then all are forgotten, and read again when asked for."""

    def __init__(self, limit: int = CACHE) -> None:
        self._limit, self._size = limit, 0
        self._held: dict[int, Arrays] = {}

    def get(self, round: int) -> Arrays | None:
        """Find the arrays of a round."""
        return self._held.get(round)

    def put(self, round: int, arrays: Arrays) -> None:
        """Keep the arrays of a round."""
        size = sum(one.nbytes for one in arrays.values())
        if self._size + size > self._limit:
            self._held.clear()
            self._size = 0
        self._held[round] = arrays
        self._size += size


def encode_arrays(arrays: Mapping[str, NDArray[Any]], stamp: str) -> bytes:
    """Write arrays with a stamp and a checksum; integers as small as they can be."""
    whole = {name: np.ascontiguousarray(_small(array)) for name, array in arrays.items()}
    return bytes(seal(safetensors.numpy.save(whole, {"stamp": f"{stamp} {BLANK}"}), stamp))


def decode_arrays(content: bytes, path: Path, stamp: str) -> Arrays:
    """Read what `encode_arrays` wrote; integers come back as int64."""
    found = check_seal(content, path)
    if found != stamp:
        raise damaged(path, f"it is stamped {found!r} where {stamp!r} was expected")
    return _wide(content, path)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], stamp: str) -> None:
    """Write a file of arrays in one atomic step."""
    replace(path, encode_arrays(arrays, stamp))


def read_arrays(path: Path, stamp: str) -> Arrays:
    """Read a file of arrays, if it is whole and what the stamp says."""
    return _wide(read_sealed(path, stamp), path)


def unfit(evaluation: Arrays, clients: int, classes: int) -> list[str]:
    """Name the arrays of a round that cannot be: of the wrong length or type, or with numbers out of their range."""
    tested = evaluation["ids"].size if "ids" in evaluation else clients
    shown = evaluation["margins.classes"].size if "margins.classes" in evaluation else -1
    sizes = {"clients": tested, "classes": classes}

    def fits(name: str, array: NDArray[Any]) -> bool:
        if name == "margins":
            return array.shape == (shown,) and array.dtype.kind == "f"
        if name in ("ids", "margins.classes"):
            return _counts(array, array.size, clients if name == "ids" else classes)
        part, kind, unit, *_ = (*name.split(".", 3), "", "")
        size, support = sizes.get(unit, -1), evaluation.get(f"{part}.support.{unit}", np.zeros(0))
        if part not in PARTS or kind not in MEASURES:
            return False
        if kind in (*BESIDE, SHARPNESS):
            most = 1 if kind in SHARES else np.finfo(np.float32).max
            return array.shape == (size,) and array.dtype.kind == "f" and not bool(((array < 0) | (array > most)).any())
        below = kind != "correct" or (support.shape == array.shape and bool((array <= support).all()))
        return _counts(array, size) and below

    return [name for name, array in evaluation.items() if not fits(name, array)]


def _counts(array: NDArray[Any], size: int, below: int | None = None) -> bool:
    """Tell whether an array is a row of so many whole numbers from 0 on."""
    if array.shape != (size,) or array.dtype.kind != "i":
        return False
    return not size or (array.min() >= 0 and (below is None or bool(array.max() < below)))


def _wide(content: bytes, path: Path) -> Arrays:
    try:
        found = safetensors.numpy.load(content)
    except (SafetensorError, ValueError, TypeError) as error:
        raise damaged(path, f"it is not a whole tensor file ({error})") from error
    return {name: one.astype(np.int64) if one.dtype.kind in "iu" else one for name, one in found.items()}


def _small(array: NDArray[Any]) -> NDArray[Any]:
    """Take the smallest type that holds all integers of an array."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    low, high = int(array.min()), int(array.max())
    kinds = (np.uint8, np.uint16, np.uint32) if low >= 0 else (np.int8, np.int16, np.int32)
    fitting = (kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return array.astype(next(fitting, np.int64))
