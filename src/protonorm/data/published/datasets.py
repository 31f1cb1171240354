"""Published image datasets, from prepared files that `protonorm data` creates: the paper's, and two like them.

Original training and test images are merged, as in the public programs; each client splits its own share.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Literal

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.data.access import real_path
from protonorm.data.dataset import Dataset, take_samples
from protonorm.data.mapped import Mapped, file_version, open_mapped
from protonorm.data.prepared import Arrays, data_root, has_training, read_prepared

Pool = Literal["train", "all"]


@dataclass(frozen=True, config=STRICT)
class Published(ABC):
    """Base class of the published datasets, each identified by its name."""

    name: ClassVar[str]

    root: Path | None = field(default=None, compare=False)  # folder of prepared data; results do not depend on it
    samples: Count | None = None  # number of samples, each class in proportion; None: all

    @property
    def path(self) -> Path:
        """Path of the prepared file, which may not exist yet."""
        return data_root(self.root) / f"{self.name}.npz"

    def load(self) -> Dataset:
        """Load the images as a memory map."""
        return self._dataset(self._open().arrays)

    def description(self) -> dict[str, Any]:
        """Return a description of the content, independent of its path."""
        return {"name": self.name, **self._facts(self._open())}

    def fits(self, description: Mapping[str, Any]) -> bool:
        """Return whether a description may be of this dataset, as far as can be decided without images."""
        taken = description.get("samples") if "of" in description else None
        return description.get("name") == self.name and taken == self.samples

    def _dataset(self, arrays: Arrays) -> Dataset:
        images, labels = arrays.images, arrays.labels
        if self.samples:
            chosen = take_samples(labels, self.samples)
            images, labels = images[chosen], labels[chosen]
        return Dataset(self.name, images, labels, arrays.classes)

    def _facts(self, found: Mapped) -> dict[str, Any]:
        """Return the facts, with the number of samples used and available; the hash is of all samples."""
        about = found.about
        return about | ({"samples": self.samples, "of": about["samples"]} if self.samples else {})

    def _open(self, pool: Pool = "all") -> Mapped:
        path = self._existing_path()
        name = self.name if pool == "all" else f"{self.name}.{pool}"
        return open_mapped(path.parent, name, file_version(path, pool), _read, path, pool)

    def _existing_path(self) -> Path:
        path = real_path(self.path)
        if not os.path.exists(path):
            raise ValueError(
                f"There is no {path.name} in {path.parent}. `protonorm data list` says what to do; "
                "dataset.root or PROTONORM_DATA names another folder."
            )
        return path


@dataclass(frozen=True, config=STRICT)
class CIFAR10(Published):
    """CIFAR-10: small photographs in ten classes."""

    name: ClassVar[str] = "cifar10"


@dataclass(frozen=True, config=STRICT)
class CIFAR100(Published):
    """CIFAR-100: small photographs in a hundred classes."""

    name: ClassVar[str] = "cifar100"


@dataclass(frozen=True, config=STRICT)
class Flowers102(Published):
    """Flowers-102: photographs of flowers, resized to 64×64."""

    name: ClassVar[str] = "flowers102"


@dataclass(frozen=True, config=STRICT)
class TinyImageNet(Published):
    """Tiny ImageNet: photographs in two hundred classes."""

    name: ClassVar[str] = "tinyimagenet"

    pool: Pool | None = None  # training images, or all labelled images; None: training images if there are any

    def load(self) -> Dataset:
        """Load the images of the pool as a memory map."""
        return self._dataset(self._open_pool()[1].arrays)

    def description(self) -> dict[str, Any]:
        """Return a description of the content and pool."""
        pool, found = self._open_pool()
        return {"name": self.name, "pool": pool, **self._facts(found)}

    def fits(self, description: Mapping[str, Any]) -> bool:
        """Return whether a description may be of this dataset and pool."""
        return super().fits(description) and self.pool in (None, description.get("pool"))

    def _open_pool(self) -> tuple[Pool, Mapped]:
        pool = self.pool
        if pool != "all":
            pool = "train" if has_training(self._existing_path()) else "all"
        if pool == "all" and self.pool == "train":
            raise ValueError(f"{self.path} holds no training pictures; dataset.pool=all takes what there is.")
        if pool == "all" and self.pool is None:
            warnings.warn(f"{self.path} holds no training pictures: all that it holds are taken.", stacklevel=4)
        return pool, self._open(pool)


@dataclass(frozen=True, config=STRICT)
class FashionMNIST(Published):
    """Fashion-MNIST: all 70,000 images of clothes."""

    name: ClassVar[str] = "fashion-mnist"


@dataclass(frozen=True, config=STRICT)
class MNIST(Published):
    """MNIST: handwritten digits."""

    name: ClassVar[str] = "mnist"


def _read(path: Path, pool: Pool) -> Arrays:
    arrays = read_prepared(path)
    kept = arrays.split == 0
    if pool == "all" or kept.all():
        return arrays
    return arrays._replace(images=arrays.images[kept], labels=arrays.labels[kept], split=arrays.split[kept])
