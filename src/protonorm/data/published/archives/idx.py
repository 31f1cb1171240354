"""MNIST and Fashion-MNIST from their idx files, packed by gzip or plain.

LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.
Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import steps
from protonorm.data.fashion import CLASSES
from protonorm.data.prepared import Arrays
from protonorm.data.published.archives.members import gunzip

DIGITS = tuple("0123456789")
PARTS = ("train", "t10k")
BYTES = 8  # the idx type of unsigned bytes


def read_fashion(files: Mapping[str, Path]) -> Arrays:
    """Read the four files of Fashion-MNIST."""
    return _read(files, CLASSES)


def read_digits(files: Mapping[str, Path]) -> Arrays:
    """Read the four files of MNIST."""
    return _read(files, DIGITS)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes: two zeros, its type, its number of dimensions, their sizes, then the bytes."""
    content = gunzip(path)
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if content[:4] != bytes([0, 0, BYTES, dimensions]) or len(content) - start != math.prod(shape):
        raise ValueError(f"{path} is damaged: it is not an idx file of {dimensions} dimensions.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(files: Mapping[str, Path], classes: tuple[str, ...]) -> Arrays:
    images, labels = [], []
    for part in steps(PARTS, "Reading idx files"):
        images.append(read_idx(files[f"{part}-images-idx3-ubyte.gz"], 3))
        labels.append(read_idx(files[f"{part}-labels-idx1-ubyte.gz"], 1))
        if len(images[-1]) != len(labels[-1]) or not len(labels[-1]) or labels[-1].max() >= len(classes):
            raise ValueError(f"The {part} files do not belong together: their pictures and labels do not match.")
    split = np.repeat(np.array([0, 1], np.int8), [len(part) for part in labels])
    return Arrays(np.concatenate(images)[..., None], np.concatenate(labels).astype(np.int64), split, classes)
