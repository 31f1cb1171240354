"""The paper's picture sets and two like them, from files of the prepared form; `protonorm data` makes these files.

Original training and test pictures are put together, as in the public programs; each client splits its own share.
"""

from __future__ import annotations

import warnings
from abc import ABC
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from protonorm.data.dataset import Dataset
from protonorm.data.fewer import fewer
from protonorm.data.mapped import Mapped, open_mapped, stamp_of_file
from protonorm.data.places import data_root
from protonorm.data.prepared import Arrays, has_training, read_prepared
from protonorm.settings import STRICT, Count

Pool = Literal["train", "all"]


@dataclass(frozen=True, config=STRICT)
class Published(ABC):
    """A data set with a name that everybody knows."""

    name: ClassVar[str]

    root: Path | None = field(default=None, compare=False)  # folder of prepared data; results do not depend on it
    samples: Count | None = None  # so many, of each class its share; None takes all

    @property
    def path(self) -> Path:
        """Say where its file is, or has to be."""
        return data_root(self.root) / f"{self.name}.npz"

    def load(self) -> Dataset:
        """Map the pictures."""
        return self._taken(self._open().arrays)

    def description(self) -> dict[str, Any]:
        """Tell the data set by its content, not by its place."""
        return {"name": self.name, **self._told(self._open().about)}

    def _taken(self, arrays: Arrays) -> Dataset:
        images, labels = arrays.images, arrays.labels
        if self.samples:
            chosen = fewer(labels, self.samples)
            images, labels = images[chosen], labels[chosen]
        return Dataset(self.name, images, labels, arrays.classes)

    def _told(self, about: dict[str, Any]) -> dict[str, Any]:
        """Say how many samples are taken of how many; the hash is that of all."""
        return about | ({"samples": self.samples, "of": about["samples"]} if self.samples else {})

    def _open(self, pool: Pool = "all") -> Mapped:
        path = self._there()
        name = self.name if pool == "all" else f"{self.name}.{pool}"
        return open_mapped(path.parent, name, stamp_of_file(path, pool), _read, (path, pool))

    def _there(self) -> Path:
        path = self.path.resolve()
        if not path.exists():
            raise ValueError(
                f"There is no {path.name} in {path.parent}. `protonorm data list` says what to do; "
                "dataset.root or PROTONORM_DATA names another folder."
            )
        return path


@dataclass(frozen=True, config=STRICT)
class CIFAR10(Published):
    """Small photographs of ten kinds of things."""

    name: ClassVar[str] = "cifar10"


@dataclass(frozen=True, config=STRICT)
class CIFAR100(Published):
    """Small photographs of a hundred kinds of things."""

    name: ClassVar[str] = "cifar100"


@dataclass(frozen=True, config=STRICT)
class Flowers102(Published):
    """Photographs of flowers, brought to 64×64."""

    name: ClassVar[str] = "flowers102"


@dataclass(frozen=True, config=STRICT)
class TinyImageNet(Published):
    """Photographs of two hundred kinds of things."""

    name: ClassVar[str] = "tinyimagenet"

    pool: Pool | None = None  # the training pictures, or all with labels; None: training pictures if there are any

    def load(self) -> Dataset:
        """Map the pictures of the pool."""
        return self._taken(self._chosen()[1].arrays)

    def description(self) -> dict[str, Any]:
        """Tell the data set by its content and pool."""
        pool, found = self._chosen()
        return {"name": self.name, "pool": pool, **self._told(found.about)}

    def _chosen(self) -> tuple[Pool, Mapped]:
        pool = self.pool
        if pool != "all":
            pool = "train" if has_training(self._there()) else "all"
        if pool == "all" and self.pool == "train":
            raise ValueError(f"{self.path} holds no training pictures; dataset.pool=all takes what there is.")
        if pool == "all" and self.pool is None:
            warnings.warn(f"{self.path} holds no training pictures: all that it holds are taken.", stacklevel=4)
        return pool, self._open(pool)


@dataclass(frozen=True, config=STRICT)
class FashionMNIST(Published):
    """Pictures of clothes, all 70,000."""

    name: ClassVar[str] = "fashion-mnist"


@dataclass(frozen=True, config=STRICT)
class MNIST(Published):
    """Handwritten digits."""

    name: ClassVar[str] = "mnist"


def _read(source: tuple[Path, Pool]) -> Arrays:
    path, pool = source
    arrays = read_prepared(path)
    kept = arrays.split == 0
    if pool == "all" or kept.all():
        return arrays
    return arrays._replace(images=arrays.images[kept], labels=arrays.labels[kept], split=arrays.split[kept])
