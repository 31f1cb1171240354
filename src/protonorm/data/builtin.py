"""Datasets that ship with the package: six spiral arms, and a balanced tenth of Fashion-MNIST."""

import hashlib
import lzma
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Seed
from protonorm.data.access import require_room
from protonorm.data.dataset import Dataset, take_samples

ARMS = 6
WORKING = 64  # bytes of memory per point during computation
CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
IMAGES_PER_CLASS = 600  # images per class
SIDE = 28
FILE = "fashion.xz"
# of the images (6000, 28, 28), ordered by class, each row by row
SHA256 = "ddd532ed572dbe49b72b5f104b551d4e081a195ad73a00d4d40ec22e3eb3fae2"


@dataclass(frozen=True, config=STRICT)
class Spiral:
    """Points (r sin ω, r cos ω) of six arms k = 0 … 5, with r from 1 to 10."""

    form: Literal["linear", "paper"] = "linear"
    # "linear": ω from kπ/3 to (k+1)π/3 plus noise from U[0, 0.5), which separates the arms as the paper's figure does;
    # "paper": the printed formula, ω from kπ/3 to 2kπ/3 plus noise from N(0, 1), which mixes them
    points: Count = 5000  # points per arm
    noise: NonNegative = 1.0  # factor applied to the noise of the form; 0 for none
    seed: Seed = 1

    def load(self) -> Dataset:
        """Compute the points, arm by arm."""
        require_room(WORKING * ARMS * self.points, f"dataset.points={self.points}", "fewer points are needed.")
        random = np.random.default_rng(self.seed)
        size = (ARMS, self.points)
        arm = np.arange(ARMS)[:, None]  # k
        progress = np.linspace(0, 1, self.points)  # (i − 1)/(n − 1)
        factor, shift = (1, random.uniform(0, 0.5, size)) if self.form == "linear" else (arm, random.normal(size=size))
        omega = (arm + factor * progress) * np.pi / 3 + self.noise * shift  # (6, n)
        radius = 1 + 9 * progress
        points = np.stack([radius * np.sin(omega), radius * np.cos(omega)], axis=-1)  # (6, n, 2)
        return Dataset(
            name="spiral",
            inputs=points.reshape(-1, 2).astype(np.float32),
            labels=np.repeat(np.arange(ARMS), self.points),
            classes=tuple(f"arm {k}" for k in range(ARMS)),
        )


@dataclass(frozen=True, config=STRICT)
class Fashion:
    """Images of clothes, 28×28 grey values: the first 600 training images of each of ten classes.

    Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017.
    MIT licence, see fashion-licence.txt beside this file. `tools/embed_fashion.py` creates the packed file.
    """

    samples: Count | None = None  # number of samples, each class in proportion; None: all

    def load(self) -> Dataset:
        """Unpack the images, ordered by class, and verify their SHA-256."""
        packed = files("protonorm.data").joinpath(FILE).read_bytes()
        columns = np.frombuffer(lzma.decompress(packed), np.uint8).reshape(-1, SIDE, SIDE)
        pictures = columns.transpose(0, 2, 1).copy()  # (6000, 28, 28); stored column by column, which compresses better
        if hashlib.sha256(pictures.data).hexdigest() != SHA256:
            raise ValueError(f"The pictures in {FILE} are not those of this version; install the package again.")
        labels = np.repeat(np.arange(len(CLASSES)), IMAGES_PER_CLASS)
        chosen = take_samples(labels, self.samples) if self.samples else slice(None)
        return Dataset("fashion", pictures[chosen, ..., None], labels[chosen], CLASSES)

    def description(self) -> dict[str, Any]:
        """Return the dataset's description, with the number of samples unless all are used."""
        return {"name": "fashion"} | ({"samples": self.samples} if self.samples else {})
