"""Pictures that are dealt out already, from one folder or one file for each client. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protonorm.data.prepared import Arrays, read_prepared
from protonorm.data.tree import UNSAID, Wish, folders, in_order, leaves, read_leaves
from protonorm.progress import steps


def client_places(path: Path) -> list[Path]:
    """List the clients' folders or files, sorted by name."""
    inside = folders(path)
    files = in_order(one for one in path.glob("*.npz") if not one.name.startswith("."))
    if inside and files:
        raise ValueError(f"{path} has folders ({inside[0].name}) and files ({files[0].name}); expected one kind only.")
    if not inside and not files:
        raise ValueError(f"{path} has no clients in it; expected a folder of class folders, or an .npz file, for each.")
    return inside or files


def read_clients(path: Path, wish: Wish) -> Arrays:
    """Read all clients' pictures one after the other."""
    places = client_places(path)
    if places[0].is_dir():
        found = [leaf for client, place in enumerate(places) for leaf in leaves(place, client, gaps=True)]
        return read_leaves(found, path, wish)
    if wish.size or wish.channels:
        raise ValueError(f"dataset.size and dataset.channels are for picture files; {places[0]} is taken as it is.")
    return _join(places, [_own(place) for place in steps(places, "Reading the clients' files")])


def _own(path: Path) -> Arrays:
    """Read one client's file; without test pictures it has no split of its own."""
    arrays = read_prepared(path)
    return arrays if arrays.split.any() else arrays._replace(split=np.full_like(arrays.split, UNSAID))


def _join(places: list[Path], parts: list[Arrays]) -> Arrays:
    first = parts[0]
    for place, part in zip(places, parts, strict=True):
        if part.classes != first.classes:
            differ = sorted(set(part.classes) ^ set(first.classes))
            why = f"they differ in {', '.join(differ)}" if differ else "they are in another order"
            raise ValueError(
                f"{place} and {places[0]} name other classes: {why}; labels must mean the same everywhere."
            )
        if part.images.shape[1:] != first.images.shape[1:]:
            sizes = ["×".join(map(str, one.images.shape[1:])) for one in (part, first)]
            raise ValueError(f"The pictures of {place} are {sizes[0]}, those of {places[0]} {sizes[1]}.")
        if not (part.split <= 0).any():
            raise ValueError(f"{place} has no training pictures.")
    if len(first.classes) < 2:
        raise ValueError(f"{places[0].parent} has one class only; there is nothing to tell apart.")
    return Arrays(
        images=np.concatenate([part.images for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        split=np.minimum(np.concatenate([part.split for part in parts]), 1),
        classes=first.classes,
        owner=np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts]),
    )
