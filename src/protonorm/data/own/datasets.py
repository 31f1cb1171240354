"""The user's own pictures, by one setting: dataset=folder:PATH, dataset=npz:PATH, dataset=clients:PATH."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.data.access import real_path, require_file
from protonorm.data.dataset import Dataset, Names
from protonorm.data.mapped import Mapped, file_version, open_mapped, short_hash
from protonorm.data.own.clients import client_files, client_names, client_paths, read_clients
from protonorm.data.own.files import OwnFiles
from protonorm.data.own.folders import ImageOptions, picture_files
from protonorm.data.own.reading import read_picture_files
from protonorm.data.prepared import Arrays, data_root, read_prepared

Channels = Literal[1, 3]
Source = tuple[Path, ImageOptions, bool]  # what is read, in which form, and whether bad pictures are left out


@dataclass(frozen=True, config=STRICT)
class Folder(OwnFiles):
    """A folder of pictures for each class, named after it."""

    path: Path
    size: Count | None = None  # pixels of a side that all pictures are resized to
    channels: Channels | None = None  # grey or coloured
    skip_bad: bool = False  # leave out pictures that cannot be read, and say which

    kind: ClassVar[str] = "folder"

    def opened(self) -> Mapped:
        """Read or map the pictures."""
        source: Source = (real_path(self.path), ImageOptions(self.size, self.channels), self.skip_bad)
        version = short_hash(*((file, _size_and_time(file.path)) for file in picture_files(source[0])))
        return open_mapped(data_root(), self.copy_name(*source[1:]), version, _read_folder, source)


@dataclass(frozen=True, config=STRICT)
class Npz(OwnFiles):
    """A file of the prepared form; its training and test pictures are put together."""

    path: Path

    kind: ClassVar[str] = "npz"

    def opened(self) -> Mapped:
        """Map the pictures."""
        path = real_path(self.path)
        return open_mapped(data_root(), self.copy_name(), file_version(path), read_prepared, path)


@dataclass(frozen=True, config=STRICT)
class Clients(OwnFiles):
    """Data that clients own already: a folder of class folders, or a file of the prepared form, for each client."""

    path: Path
    size: Count | None = None
    channels: Channels | None = None
    skip_bad: bool = False

    kind: ClassVar[str] = "clients"

    @property
    def clients(self) -> int:
        """Count the clients."""
        return len(client_paths(real_path(self.path)))

    @property
    def names(self) -> Names:
        """Name the classes and the clients."""
        return self.opened().arrays.classes, client_names(real_path(self.path))

    def dataset(self) -> Dataset:
        """Read or map the pictures of all clients."""
        arrays, names = self.opened().arrays, client_names(real_path(self.path))
        return Dataset(
            self.name,
            arrays.images,
            arrays.labels,
            arrays.classes,
            owner=arrays.owner,
            split=arrays.split,
            client_names=names,
        )

    def opened(self) -> Mapped:
        """Read or map the pictures of all clients."""
        source: Source = (real_path(self.path), ImageOptions(self.size, self.channels), self.skip_bad)
        version = short_hash(*((path, _size_and_time(path)) for path in client_files(source[0])))
        return open_mapped(data_root(), self.copy_name(*source[1:]), version, _read_clients, source)


def _size_and_time(path: Path) -> tuple[int, int] | None:
    """Tell a file from a later one; None for what is no file, which is refused with all that is bad when it is read."""
    try:
        found = require_file(path)
    except ValueError:
        return None
    return found.st_size, found.st_mtime_ns


def _read_folder(source: Source) -> Arrays:
    path, options, skip_bad = source
    return read_picture_files(picture_files(path), path, options, skip_bad=skip_bad)._replace(owner=None)


def _read_clients(source: Source) -> Arrays:
    path, options, skip_bad = source
    return read_clients(path, options, skip_bad=skip_bad)
