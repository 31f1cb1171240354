"""Folders of pictures, one for each class, from what is on the disk to arrays. Nothing here needs torch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from protonorm.data.pictures import ENDINGS, Look, look, stack
from protonorm.data.prepared import Arrays
from protonorm.progress import steps

UNSAID = -1  # nobody has said whether a picture trains or tests
SPLITS = {"train": 0, "test": 1, "val": 1, "valid": 1}  # sub-folders that say it
USUAL_SIDE = 64  # pixels, for pictures of different sizes
LIMIT = 8 * 2**30  # bytes


class Leaf(NamedTuple):
    """One picture in a tree."""

    path: Path
    kind: str  # its class
    split: int
    client: int


class Wish(NamedTuple):
    """What pictures are brought to."""

    size: int | None  # pixels of a side; None: theirs, if all have the same
    channels: int | None  # 1 or 3; None: theirs, if all have the same


def leaves(folder: Path, client: int = 0, *, gaps: bool = False) -> list[Leaf]:
    """List the pictures of a folder of class folders, or of train and test folders of these.

    With `gaps`, class folders may be empty.
    """
    inside = folders(folder)
    if inside and all(one.name in SPLITS for one in inside) and any(folders(one) for one in inside):
        parts = [(kind, SPLITS[one.name]) for one in inside for kind in folders(one)]
    else:
        parts = [(kind, UNSAID) for kind in inside]
    if not parts:
        raise ValueError(f"{folder} has no folders in it; expected one for each class, with pictures.")
    found = []
    for kind, split in parts:
        files = pictures_in(kind)
        if not files and not gaps:
            raise ValueError(f"{kind} has no pictures in it; expected files that end in {', '.join(ENDINGS)}.")
        found += [Leaf(path, kind.name, split, client) for path in files]
    if not found:
        raise ValueError(f"{folder} has no pictures in it; expected files that end in {', '.join(ENDINGS)}.")
    return found


def folders(folder: Path) -> list[Path]:
    """List the folders in a folder, without hidden ones."""
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}.")
    return in_order(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))


def pictures_in(folder: Path) -> list[Path]:
    """List the picture files in a folder, without hidden ones."""
    return in_order(one for one in folder.iterdir() if one.suffix.lower() in ENDINGS and not one.name.startswith("."))


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort by name, numbers in a name by their value: client2 before client10."""
    return sorted(
        paths, key=lambda path: [(not run.isdigit(), int(run) if run.isdigit() else 0, run) for run in _runs(path)]
    )


def _runs(path: Path) -> list[str]:
    return re.findall(r"\d+|\D+", path.name)


def class_names(found: Sequence[Leaf], where: Path) -> tuple[str, ...]:
    """Name the classes, sorted; refuse one class only, and names that differ in capitals alone."""
    names = sorted({leaf.kind for leaf in found})
    if len(names) < 2:
        raise ValueError(f"{where} has one class only ({names[0]}); there is nothing to tell apart.")
    plain: dict[str, str] = {}
    for name in names:
        if (other := plain.setdefault(name.casefold(), name)) != name:
            raise ValueError(f"{where} has the classes {other} and {name}; give both the same name, or different ones.")
    return tuple(names)


def read_leaves(found: Sequence[Leaf], where: Path, wish: Wish) -> Arrays:
    """Read all pictures of a tree."""
    names = class_names(found, where)
    looks = [look(leaf.path) for leaf in steps(found, "Looking at pictures")]
    channels = _channels(found, looks, wish)
    size = _size(found, looks, wish)
    if (total := len(found) * size[0] * size[1] * channels) > LIMIT:
        raise ValueError(
            f"{len(found)} pictures of {size[0]}×{size[1]} would take {total / 2**30:.0f} GiB; "
            "dataset.size=64, say, makes them smaller."
        )
    number = {name: k for k, name in enumerate(names)}
    return Arrays(
        images=stack([leaf.path for leaf in found], size, channels),
        labels=np.array([number[leaf.kind] for leaf in found], np.int64),
        split=np.array([leaf.split for leaf in found], np.int8),
        classes=names,
        owner=np.array([leaf.client for leaf in found], np.int64),
    )


def _channels(found: Sequence[Leaf], looks: Sequence[Look], wish: Wish) -> int:
    kinds = {one.channels: leaf.path for leaf, one in zip(found, looks, strict=True)}
    if wish.channels:
        return wish.channels
    if len(kinds) > 1:
        raise ValueError(
            f"Some pictures are coloured ({kinds[3]}) and some are grey ({kinds[1]}); "
            "dataset.channels=3 or dataset.channels=1 makes them alike."
        )
    return looks[0].channels


def _size(found: Sequence[Leaf], looks: Sequence[Look], wish: Wish) -> tuple[int, int]:
    if wish.size:
        return wish.size, wish.size
    sizes = {(one.height, one.width): leaf.path for leaf, one in zip(found, looks, strict=True)}
    if len(sizes) == 1:
        return next(iter(sizes))
    (one, at), (other, there) = list(sizes.items())[:2]
    warnings.warn(
        f"The pictures differ in size ({one[0]}×{one[1]} {at.name}, {other[0]}×{other[1]} {there.name}): "
        f"all are brought to {USUAL_SIDE}×{USUAL_SIDE}; dataset.size says otherwise.",
        stacklevel=2,
    )
    return USUAL_SIDE, USUAL_SIDE
