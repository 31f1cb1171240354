"""One's own .npz files of vectors or of tokens. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.data.npz import NpzReader, open_npz
from protonorm.data.own.columns import as_they_are, standardised
from protonorm.data.own.labels import encode_labels, named_labels
from protonorm.data.prepared import Arrays

FEATURES = ("inputs", "features")  # names that the vectors may have in the file


def read_features(source: tuple[Path, bool]) -> Arrays:
    """Read vectors (N, D) and labels (N,), standardised if wanted; or say what is wrong with them."""
    path, standardise = source
    with open_npz(path, "vectors") as file:
        name = next((name for name in FEATURES if name in file), None)
        if name is None:
            raise ValueError(f"it lacks {' or '.join(FEATURES)}, vectors (N, D)")
        values = file.read(name)
        if values.ndim != 2 or not values.size or values.dtype.kind not in "fiub":
            raise ValueError(
                f"{name} has shape {values.shape} and type {values.dtype}; expected numbers (N, D){_elsewhere(values)}"
            )
        labels, classes = _labels(file, len(values))
        vectors = standardised(values) if standardise else as_they_are(values)
        return Arrays(vectors, labels, np.zeros(len(labels), np.int8), classes)


def read_tokens(path: Path) -> Arrays:
    """Read tokens (N, L) and labels (N,), or say what is wrong with them."""
    with open_npz(path, "tokens") as file:
        tokens = file.read("tokens")
        if tokens.ndim != 2 or not tokens.size or tokens.dtype.kind not in "iu":
            raise ValueError(
                f"tokens has shape {tokens.shape} and type {tokens.dtype}; expected whole numbers (N, L), "
                "short texts filled up with 0"
            )
        labels, classes = _labels(file, len(tokens))
        vocabulary = int(tokens.max()) + 1
        return Arrays(tokens.astype(np.int64), labels, np.zeros(len(labels), np.int8), classes, vocabulary=vocabulary)


def _labels(file: NpzReader, samples: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    labels, classes = file.read("labels"), file.get("classes")
    if labels.shape != (samples,):
        raise ValueError(f"labels has shape {labels.shape}; expected ({samples},)")
    return encode_labels(labels, "it") if classes is None else named_labels(labels, classes, "it")


def _elsewhere(values: NDArray[Any]) -> str:
    return "; dataset=npz:PATH takes pictures" if values.ndim in (3, 4) and values.dtype == np.uint8 else ""
