"""A balanced tenth of Fashion-MNIST that comes with the package: the first 600 training pictures of each class.

Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017.
MIT licence, see fashion-licence.txt beside this file. `tools/embed_fashion.py` makes the packed file.
"""

from __future__ import annotations

import hashlib
import lzma
from importlib.resources import files
from typing import Any

import numpy as np

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.data.dataset import Dataset, take_samples

CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
EACH = 600  # pictures of a class
SIDE = 28
FILE = "fashion.xz"
# of the pictures (6000, 28, 28), class after class, row after row
SHA256 = "ddd532ed572dbe49b72b5f104b551d4e081a195ad73a00d4d40ec22e3eb3fae2"


@dataclass(frozen=True, config=STRICT)
class Fashion:
    """Pictures of clothes, 28×28 grey values, 600 of each of ten classes."""

    samples: Count | None = None  # how many, each class in proportion; None takes all

    def load(self) -> Dataset:
        """Unpack the pictures, class after class, and check that they are those that were packed."""
        packed = files("protonorm.data").joinpath(FILE).read_bytes()
        columns = np.frombuffer(lzma.decompress(packed), np.uint8).reshape(-1, SIDE, SIDE)
        pictures = columns.transpose(0, 2, 1).copy()  # (6000, 28, 28); columns first pack smaller
        if hashlib.sha256(pictures.data).hexdigest() != SHA256:
            raise ValueError(f"The pictures in {FILE} are not those of this version; install the package again.")
        labels = np.repeat(np.arange(len(CLASSES)), EACH)
        chosen = take_samples(labels, self.samples) if self.samples else slice(None)
        return Dataset("fashion", pictures[chosen, ..., None], labels[chosen], CLASSES)

    def description(self) -> dict[str, Any]:
        """Describe it, with the number of samples unless it is all of them."""
        return {"name": "fashion"} | ({"samples": self.samples} if self.samples else {})
