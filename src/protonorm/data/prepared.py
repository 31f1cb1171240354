"""The prepared form of a picture set, a file NAME.npz of four plain arrays, and where such files are kept.

images   uint8 (N, H, W, C)
labels   int64 (N,), from 0 to K − 1
split    uint8 (N,), 0 for the original training pictures; all 0 if it is not there
classes  text (K,); the numbers if it is not there

Nothing here needs torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import platformdirs
from numpy.typing import NDArray

from protonorm.core.scratch import Scratch
from protonorm.data.access import expand
from protonorm.data.dataset import Inputs
from protonorm.data.npz import open_npz
from protonorm.files import make_folder, open_private

UNDECIDED = -1  # in a split: nobody has said whether a picture trains or tests
MOST_UNNAMED = 10_000  # classes without names; larger labels are dates or the like, not classes


class Arrays(NamedTuple):
    """Labelled pictures in the prepared form; of one's own data also vectors or tokens in the place of pictures."""

    images: Inputs  # (N, H, W, C), or (N, D), or (N, L)
    labels: NDArray[np.int64]  # (N,)
    split: NDArray[np.int8]  # (N,): 0 trains, more tests, −1 is undecided
    classes: tuple[str, ...]  # K names
    owner: NDArray[np.int64] | None = None  # (N,): each picture's client, if that is given
    vocabulary: int | None = None  # V, if it is tokens


def data_root(given: Path | None = None) -> Path:
    """Find the folder of prepared data: the one given, PROTONORM_DATA, or the user's cache folder."""
    named = given or os.environ.get("PROTONORM_DATA")
    return expand(Path(named)) if named else platformdirs.user_cache_path("protonorm")


def read_prepared(path: Path) -> Arrays:
    """Read a prepared file, or say what is wrong with it."""
    with open_npz(path) as file:
        if missing := [name for name in ("images", "labels") if name not in file]:
            raise ValueError(f"it lacks {' and '.join(missing)}")
        return check_arrays(file.read("images"), file.read("labels"), file.get("split"), file.get("classes"))


def has_training(path: Path) -> bool:
    """Tell whether a prepared file holds original training pictures, without reading pictures."""
    with open_npz(path) as file:
        split = file.get("split")
        return split is None or bool((split == 0).any())


def read_shape(path: Path) -> tuple[int, ...]:
    """Read the shape (N, H, W, C) of prepared pictures without reading the pictures."""
    with open_npz(path) as file:
        return file.shape("images")


def check_arrays(
    images: NDArray[Any], labels: NDArray[Any], split: NDArray[Any] | None, classes: NDArray[Any] | None
) -> Arrays:
    """Bring arrays into the prepared form, or say why they do not fit it."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
        raise ValueError(f"images has shape {images.shape} and type {images.dtype}; expected uint8 (N, H, W, C)")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images):
        raise ValueError(f"labels has shape {labels.shape} and type {labels.dtype}; expected int64 ({len(images)},)")
    if split is not None and (split.shape != labels.shape or split.dtype.kind not in "iub"):
        raise ValueError(f"split has shape {split.shape} and type {split.dtype}; expected uint8 ({len(images)},)")
    if classes is not None and (classes.ndim != 1 or classes.dtype.kind != "U"):
        raise ValueError(f"classes has shape {classes.shape} and type {classes.dtype}; expected text (K,)")
    if classes is None and labels.max() >= MOST_UNNAMED:
        raise ValueError(
            f"labels go up to {labels.max()}, and no names of classes are given; expected numbers from 0 to K − 1, "
            f"below {MOST_UNNAMED}, or an array `classes` with the K names"
        )
    names = tuple(map(str, range(int(labels.max()) + 1) if classes is None else classes.tolist()))
    if labels.min() < 0 or labels.max() >= len(names):
        raise ValueError(f"labels go from {labels.min()} to {labels.max()}, but {len(names)} classes are named")
    if len(set(names)) < len(names):
        raise ValueError("two classes have the same name")
    parts = np.zeros(len(labels), np.int8) if split is None else np.minimum(split, 127).astype(np.int8)
    return Arrays(images if images.ndim == 4 else images[..., None], labels.astype(np.int64), parts, names)


def write_prepared(path: Path, arrays: Arrays) -> None:
    """Write a prepared file in one atomic step, uncompressed, for its owner only."""
    make_folder(path.parent)
    with Scratch(path.parent, prefix=f".{path.name}-") as scratch:
        beside = scratch.folder / path.name
        with open_private(beside, "wb") as file:
            np.savez(
                file,
                images=arrays.images,
                labels=arrays.labels,
                split=arrays.split.astype(np.uint8),
                classes=np.array(arrays.classes),
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
