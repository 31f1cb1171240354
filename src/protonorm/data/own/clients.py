"""Pictures that clients own already, in one folder or one file for each client. Nothing here needs torch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from protonorm.core.progress import steps
from protonorm.core.text import visible
from protonorm.data.access import require_room
from protonorm.data.own.folders import ImageOptions, files_in, folders_in, picture_files
from protonorm.data.own.reading import read_picture_files
from protonorm.data.prepared import UNDECIDED, Arrays, read_prepared, read_shape


def client_paths(path: Path) -> list[Path]:
    """List the clients' folders or files, sorted by name."""
    folders = folders_in(path)
    files = files_in(path, (".npz",))
    if folders and files:
        raise ValueError(f"{path} has folders ({folders[0].name}) and files ({files[0].name}); expected one kind only.")
    if not folders and not files:
        raise ValueError(f"{path} has no clients in it; expected a folder of class folders, or an .npz file, for each.")
    return folders or files


def client_names(path: Path) -> tuple[str, ...]:
    """Name the clients as their folders or files are named; files that differ in their endings alone keep these."""
    paths = client_paths(path)
    short = tuple(visible(one.name if one.is_dir() else one.stem) for one in paths)
    return short if len(set(short)) == len(short) else tuple(visible(one.name) for one in paths)


def client_files(path: Path) -> list[Path]:
    """List all files of all clients: pictures, or one .npz file each."""
    paths = client_paths(path)
    if not paths[0].is_dir():
        return paths
    return [file.path for one in paths for file in picture_files(one, allow_empty=True)]


def read_clients(path: Path, options: ImageOptions, *, skip_bad: bool = False) -> Arrays:
    """Read all clients' pictures, one client after the other."""
    paths = client_paths(path)
    if paths[0].is_dir():
        found = [file for client, one in enumerate(paths) for file in picture_files(one, client, allow_empty=True)]
        return read_picture_files(found, path, options, skip_bad=skip_bad)
    if options.size or options.channels or skip_bad:
        names = "dataset.skip_bad is" if skip_bad else "dataset.size and dataset.channels are"
        raise ValueError(f"{names} for picture files; {paths[0]} is taken as it is.")
    total = sum(math.prod(read_shape(one)) for one in paths)
    require_room(total, f"The pictures of {len(paths)} clients", "fewer or smaller pictures are needed.")
    return _join(paths, [_read_client(one) for one in steps(paths, "Reading clients")])


def _read_client(path: Path) -> Arrays:
    """Read one client's file; without test pictures it has no split of its own."""
    arrays = read_prepared(path)
    return arrays if arrays.split.any() else arrays._replace(split=np.full_like(arrays.split, UNDECIDED))


def _join(paths: list[Path], clients: list[Arrays]) -> Arrays:
    """Put the clients' arrays together, if their labels and sizes mean the same."""
    first = clients[0]
    for path, one in zip(paths, clients, strict=True):
        if one.classes != first.classes:
            differ = sorted(set(one.classes) ^ set(first.classes))
            why = f"they differ in {', '.join(differ)}" if differ else "they are in another order"
            raise ValueError(f"{path} and {paths[0]} name other classes: {why}; labels must mean the same everywhere.")
        if one.images.shape[1:] != first.images.shape[1:]:
            size, expected = ("×".join(map(str, held.images.shape[1:])) for held in (one, first))
            raise ValueError(f"The pictures of {path} are {size}, those of {paths[0]} {expected}.")
        if not (one.split <= 0).any():
            raise ValueError(f"{path} has no training pictures.")
    return Arrays(
        images=np.concatenate([one.images for one in clients]),
        labels=np.concatenate([one.labels for one in clients]),
        split=np.minimum(np.concatenate([one.split for one in clients]), 1),
        classes=first.classes,
        owner=np.repeat(np.arange(len(clients)), [len(one.labels) for one in clients]),
    )
