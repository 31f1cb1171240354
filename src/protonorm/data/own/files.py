"""What all data of the user's own do alike: they are named after their file, and a mapped copy is kept of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from protonorm.data.access import real_path
from protonorm.data.dataset import Dataset, Names
from protonorm.data.mapped import Mapped, short_hash
from protonorm.data.own.labels import refuse_one_class


class OwnFiles(ABC):
    """A file or folder of the user's own, which is read once: afterwards its mapped copy is."""

    kind: ClassVar[str]
    path: Path

    @abstractmethod
    def opened(self) -> Mapped:
        """Read or map the data."""

    @property
    def name(self) -> str:
        """Name it after its file or folder."""
        return f"{self.kind}:{safe_name(self.path)}"

    @property
    def names(self) -> Names:
        """Name the classes, and the clients if they have names."""
        return self.opened().arrays.classes, None

    def copy_name(self, *settings: object) -> str:
        """Name the mapped copy of what is read with some settings: each kind reads a file in its own way."""
        return f"{self.kind}-{safe_name(self.path)}-{short_hash(real_path(self.path), *settings)}"

    def load(self) -> Dataset:
        """Read or map the data of an experiment, which needs two classes."""
        found = self.dataset()
        refuse_one_class(found.classes, str(real_path(self.path)))
        return found

    def dataset(self) -> Dataset:
        """Read or map the data, however few classes they have: one site of several may have one class only."""
        arrays = self.opened().arrays
        return Dataset(self.name, arrays.images, arrays.labels, arrays.classes, vocabulary=arrays.vocabulary)

    def description(self) -> dict[str, Any]:
        """Describe it by its content, not by its place."""
        found = self.opened()
        refuse_one_class(found.arrays.classes, str(real_path(self.path)))
        known = {} if found.arrays.vocabulary is None else {"vocabulary": found.arrays.vocabulary}
        return {"name": self.name, **known, **found.about}


def safe_name(path: Path) -> str:
    """Make of a path's last part a word that is fit for a file's name."""
    return re.sub(r"[^\w.-]+", "-", real_path(path).stem).strip("-.") or "data"
