"""MNIST and Fashion-MNIST from their idx files, packed by gzip or plain.

LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.
Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protonorm.data.official.members import gunzip
from protonorm.data.prepared import Arrays, Tell

CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DIGITS = tuple("0123456789")
PARTS = ("train", "t10k")
BYTES = 8  # the idx type of unsigned bytes


def read_fashion(files: Mapping[str, Path], tell: Tell) -> Arrays:
    """Read the four files of Fashion-MNIST."""
    return _read(files, CLOTHES, tell)


def read_digits(files: Mapping[str, Path], tell: Tell) -> Arrays:
    """Read the four files of MNIST."""
    return _read(files, DIGITS, tell)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes: two zeros, its type, its number of dimensions, their sizes, then the bytes."""
    content = gunzip(path)
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if content[:4] != bytes([0, 0, BYTES, dimensions]) or len(content) - start != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} is damaged: it is not an idx file of {dimensions} dimensions.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(files: Mapping[str, Path], classes: tuple[str, ...], tell: Tell) -> Arrays:
    images, labels = [], []
    for done, part in enumerate(PARTS, start=1):
        images.append(read_idx(files[f"{part}-images-idx3-ubyte.gz"], 3))
        labels.append(read_idx(files[f"{part}-labels-idx1-ubyte.gz"], 1))
        if len(images[-1]) != len(labels[-1]) or not len(labels[-1]) or labels[-1].max() >= len(classes):
            raise ValueError(f"The {part} files do not belong together: their pictures and labels do not match.")
        tell("reading", done, len(PARTS))
    split = np.repeat(np.array([0, 1], np.int8), [len(part) for part in labels])
    return Arrays(np.concatenate(images)[..., None], np.concatenate(labels).astype(np.int64), split, classes)
