"""Published image datasets, from prepared files that `protonorm data` creates: the paper's, and two like them.

Original training and test images are merged, as in the public programs; each client splits its own share.
"""

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
        arrays = self._open()[1].arrays
        chosen = take_samples(arrays.labels, self.samples) if self.samples else slice(None)
        official = arrays.split[chosen] > 0
        known = official if official.any() and not official.all() else None
        return Dataset(self.name, arrays.images[chosen], arrays.labels[chosen], arrays.classes, official=known)

    def description(self) -> dict[str, Any]:
        """Return a description of the content, independent of its path; the hash is of all samples."""
        pool, (_, about) = self._open()
        sample = {"samples": self.samples, "of": about["samples"]} if self.samples else {}
        return {"name": self.name} | ({"pool": pool} if pool else {}) | about | sample

    def fits(self, description: Mapping[str, Any]) -> bool:
        """Return whether a description may be of this dataset, as far as can be decided without images."""
        samples = description.get("samples") if "of" in description else None
        return description.get("name") == self.name and samples == self.samples

    def _open(self) -> tuple[Pool | None, Mapped]:
        path = real_path(self.path)
        if not os.path.exists(path):
            raise ValueError(
                f"There is no {path.name} in {path.parent}. `protonorm data list` says what to do; "
                "dataset.root or PROTONORM_DATA names another folder."
            )
        pool = self._choose_pool(path)
        name = f"{self.name}.train" if pool == "train" else self.name
        return pool, open_mapped(path.parent, name, file_version(path, pool or "all"), _read, path, pool)

    def _choose_pool(self, path: Path) -> Pool | None:
        """Return which images are used, for datasets that leave a choice."""
        return None


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

    def fits(self, description: Mapping[str, Any]) -> bool:
        """Return whether a description may be of this dataset and pool."""
        return super().fits(description) and self.pool in (None, description.get("pool"))

    def _choose_pool(self, path: Path) -> Pool:
        if self.pool == "all":
            return "all"
        if has_training(path):
            return "train"
        if self.pool == "train":
            raise ValueError(f"{self.path} holds no training pictures; dataset.pool=all takes what there is.")
        warnings.warn(f"{self.path} holds no training pictures: all that it holds are taken.", stacklevel=4)
        return "all"


@dataclass(frozen=True, config=STRICT)
class FashionMNIST(Published):
    """Fashion-MNIST: all 70,000 images of clothes."""

    name: ClassVar[str] = "fashion-mnist"


@dataclass(frozen=True, config=STRICT)
class MNIST(Published):
    """MNIST: handwritten digits."""

    name: ClassVar[str] = "mnist"


def _read(path: Path, pool: Pool | None) -> Arrays:
    arrays = read_prepared(path)
    train = arrays.split == 0
    if pool != "train" or train.all():
        return arrays
    return arrays._replace(images=arrays.images[train], labels=arrays.labels[train], split=arrays.split[train])
