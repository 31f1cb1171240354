"""The user's own pictures, by one setting: dataset=folder:PATH, dataset=npz:PATH, dataset=clients:PATH."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from protonorm.data.clients import client_places, read_clients
from protonorm.data.dataset import Dataset
from protonorm.data.mapped import Mapped, open_mapped, stamp, stamp_of_file
from protonorm.data.places import data_root
from protonorm.data.prepared import Arrays, read_prepared
from protonorm.data.tree import Wish, leaves, read_leaves
from protonorm.settings import STRICT, Count

Channels = Literal[1, 3]
Tree = tuple[Path, Wish]


@dataclass(frozen=True, config=STRICT)
class Folder:
    """A folder of pictures for each class, named after it."""

    path: Path
    size: Count | None = None  # pixels of a side that all pictures are brought to
    channels: Channels | None = None  # grey or coloured

    @property
    def name(self) -> str:
        """Name it after its folder."""
        return f"folder:{word(self.path)}"

    def load(self) -> Dataset:
        """Read or map the pictures."""
        arrays = self._open().arrays
        return Dataset(self.name, arrays.images, arrays.labels, arrays.classes)

    def description(self) -> dict[str, Any]:
        """Tell it by its content, not by its place."""
        return {"name": self.name, **self._open().about}

    def _open(self) -> Mapped:
        tree: Tree = (self.path.expanduser().resolve(), Wish(self.size, self.channels))
        mark = stamp(*((leaf, _time(leaf.path)) for leaf in leaves(tree[0])))
        return open_mapped(data_root(), f"{word(self.path)}-{stamp(tree)}", mark, _read_folder, tree)


@dataclass(frozen=True, config=STRICT)
class Npz:
    """A file of the prepared form; its training and test pictures are put together."""

    path: Path

    @property
    def name(self) -> str:
        """Name it after its file."""
        return f"npz:{word(self.path)}"

    def load(self) -> Dataset:
        """Map the pictures."""
        arrays = self._open().arrays
        return Dataset(self.name, arrays.images, arrays.labels, arrays.classes)

    def description(self) -> dict[str, Any]:
        """Tell it by its content, not by its place."""
        return {"name": self.name, **self._open().about}

    def _open(self) -> Mapped:
        path = self.path.expanduser().resolve()
        return open_mapped(data_root(), f"{word(path)}-{stamp(path)}", stamp_of_file(path), _read_file, path)


@dataclass(frozen=True, config=STRICT)
class Clients:
    """Data that are dealt out already: a folder of class folders, or a file of the prepared form, for each client."""

    path: Path
    size: Count | None = None
    channels: Channels | None = None

    @property
    def name(self) -> str:
        """Name it after its folder."""
        return f"clients:{word(self.path)}"

    @property
    def clients(self) -> int:
        """Count the clients."""
        return len(client_places(self.path.expanduser()))

    def load(self) -> Dataset:
        """Read or map the pictures of all clients."""
        arrays = self._open().arrays
        return Dataset(self.name, arrays.images, arrays.labels, arrays.classes, arrays.owner, arrays.split)

    def description(self) -> dict[str, Any]:
        """Tell it by its content, not by its place."""
        return {"name": self.name, **self._open().about}

    def _open(self) -> Mapped:
        tree: Tree = (self.path.expanduser().resolve(), Wish(self.size, self.channels))
        files = (path for place in client_places(tree[0]) for path in (place, *sorted(place.rglob("*"))))
        mark = stamp(*((path, _time(path)) for path in files if path.is_file()))
        return open_mapped(data_root(), f"{word(self.path)}-{stamp(tree)}", mark, _read_clients, tree)


def word(path: Path) -> str:
    """Make a word of a path's last part, fit for a file's name."""
    return re.sub(r"[^\w.-]+", "-", path.expanduser().resolve().stem).strip("-.") or "data"


def _time(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read_folder(tree: Tree) -> Arrays:
    path, wish = tree
    return read_leaves(leaves(path), path, wish)._replace(owner=None)


def _read_file(path: Path) -> Arrays:
    arrays = read_prepared(path)
    if len(arrays.classes) < 2:
        raise ValueError(f"{path} has one class only; there is nothing to tell apart.")
    return arrays


def _read_clients(tree: Tree) -> Arrays:
    path, wish = tree
    return read_clients(path, wish)
