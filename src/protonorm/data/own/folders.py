"""Folders of pictures, one for each class: find the files, and choose one size for them. Nothing here needs torch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from protonorm.data.access import reason
from protonorm.data.pictures import SUFFIXES, ImageHeader
from protonorm.data.prepared import UNDECIDED

SPLITS = {"train": 0, "test": 1, "val": 1, "valid": 1}  # names of sub-folders that say which pictures train or test
DEFAULT_SIDE = 64  # pixels, for pictures of different sizes


class PictureFile(NamedTuple):
    """One picture on the disk, and what its place says about it."""

    path: Path
    label: str  # its class
    split: int  # 0 trains, 1 tests, −1 is undecided
    client: int


class ImageOptions(NamedTuple):
    """The size and channels that all pictures are brought to."""

    size: int | None  # pixels of a side; None: theirs, if all have the same
    channels: int | None  # 1 or 3; None: theirs, if all have the same


def picture_files(folder: Path, client: int = 0, *, allow_empty: bool = False) -> list[PictureFile]:
    """List the pictures of a folder of class folders, or of train and test folders of these.

    Without pictures to test on, all are undecided. With `allow_empty`, a class folder may be empty.
    """
    inside = folders_in(folder)
    if inside and all(one.name in SPLITS for one in inside) and any(folders_in(one) for one in inside):
        classes = [(label, SPLITS[one.name]) for one in inside for label in folders_in(one)]
    else:
        classes = [(label, UNDECIDED) for label in inside]
    if not classes:
        raise ValueError(f"{folder} has no folders in it; expected one for each class, with pictures.")
    found = []
    for label, split in classes:
        files = files_in(label, SUFFIXES)
        if not files and not allow_empty:
            raise ValueError(f"{label} has no pictures in it; expected files that end in {', '.join(SUFFIXES)}.")
        found += [PictureFile(path, label.name, split, client) for path in files]
    if not found:
        raise ValueError(f"{folder} has no pictures in it; expected files that end in {', '.join(SUFFIXES)}.")
    tested = any(file.split > 0 for file in found)
    return found if tested else [file._replace(split=UNDECIDED) for file in found]


def pictures_in(folder: Path) -> list[Path]:
    """List the pictures in a folder and in those inside it, sorted by name, without hidden ones."""
    found = files_in(folder, SUFFIXES)
    for inside in folders_in(folder):
        found += [] if inside.is_symlink() or inside in found else pictures_in(inside)  # a link may lead in a circle
    return found


def folders_in(folder: Path) -> list[Path]:
    """List the folders in a folder, without hidden ones."""
    return _inside(folder, Path.is_dir)


def files_in(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List what has one of the suffixes in a folder, without hidden ones; whether these are files shows later."""
    return _inside(folder, lambda one: one.suffix.lower() in suffixes)


def _inside(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:
        if not folder.is_dir():
            raise ValueError(f"There is no folder {folder}.")
        return sort_by_name(one for one in folder.iterdir() if not one.name.startswith(".") and wanted(one))
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {reason(error)}.") from None


def sort_by_name(paths: Iterable[Path]) -> list[Path]:
    """Sort by name, numbers in a name by their value: client2 before client10."""
    return sorted(paths, key=_sort_key)


def _sort_key(path: Path) -> list[tuple[bool, int, str]]:
    words = re.findall(r"\d+|\D+", path.name)
    return [(not word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]


def choose_channels(paths: Sequence[Path], headers: Sequence[ImageHeader], options: ImageOptions) -> int:
    """Find the number of channels that all pictures have, or are brought to."""
    if options.channels:
        return options.channels
    kinds = {header.channels: path for path, header in zip(paths, headers, strict=True)}
    if len(kinds) > 1:
        raise ValueError(
            f"Some pictures are coloured ({kinds[3]}) and some are grey ({kinds[1]}); "
            "dataset.channels=3 or dataset.channels=1 makes them alike."
        )
    return headers[0].channels


def choose_size(paths: Sequence[Path], headers: Sequence[ImageHeader], options: ImageOptions) -> tuple[int, int]:
    """Find the size (H, W) that all pictures have, or are brought to."""
    if options.size:
        return options.size, options.size
    sizes = {(header.height, header.width): path for path, header in zip(paths, headers, strict=True)}
    if len(sizes) == 1:
        return next(iter(sizes))
    (one, path), (other, other_path) = list(sizes.items())[:2]
    warnings.warn(
        f"The pictures differ in size ({one[0]}×{one[1]} {path.name}, {other[0]}×{other[1]} {other_path.name}): "
        f"all are resized to {DEFAULT_SIDE}×{DEFAULT_SIDE}; dataset.size says otherwise.",
        stacklevel=2,
    )
    return DEFAULT_SIDE, DEFAULT_SIDE
