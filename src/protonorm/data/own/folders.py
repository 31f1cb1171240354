"""Folders of images, one per class, and images that clients own. Nothing here needs torch."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from protonorm.core.progress import steps
from protonorm.core.text import visible
from protonorm.data.access import reason, require_file, require_room
from protonorm.data.mapped import short_hash
from protonorm.data.own.encoding import Options
from protonorm.data.pictures import SUFFIXES, ImageHeader, describe_bad, read_headers, read_usable
from protonorm.data.prepared import UNDECIDED, Arrays, read_prepared, read_shape

SPLITS = {"train": 0, "test": 1, "val": 1, "valid": 1}  # names of sub-folders that separate training and test images
DEFAULT_SIDE = 64  # pixels, for images of different sizes
HIDDEN, ELSEWHERE, UNNAMED = "hidden", "pictures that are not in a class folder", "without an ending"


class PictureFile(NamedTuple):
    """Image file, with the class, split and client that its path implies."""

    path: Path
    label: str  # class
    split: int  # 0 training, 1 test, −1 undecided
    client: int


def picture_files(folder: Path, client: int = 0, *, allow_empty: bool = False) -> list[PictureFile]:
    """List the images of a folder of class folders, or of train and test folders of these.

    Without test images, the split of all is undecided. With `allow_empty`, a class folder may be empty.
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
    """List the images in a folder and its sub-folders, sorted by name, without hidden ones."""
    found = files_in(folder, SUFFIXES)
    for inside in folders_in(folder):
        found += [] if inside.is_symlink() or inside in found else pictures_in(inside)  # a link may form a cycle
    return found


def folders_in(folder: Path) -> list[Path]:
    """List the folders in a folder, without hidden ones."""
    return _inside(folder, Path.is_dir)


def files_in(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List the entries of a folder with one of the suffixes, without hidden ones; they need not be regular files."""
    return _inside(folder, lambda one: one.suffix.lower() in suffixes)


def _inside(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:
        if not folder.is_dir():
            raise ValueError(f"There is no folder {folder}.")
        return sort_by_name(one for one in folder.iterdir() if not one.name.startswith(".") and wanted(one))
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {reason(error)}.") from None


def sort_by_name(paths: Iterable[Path]) -> list[Path]:
    """Sort by name, with numbers in a name by their value: client2 before client10."""
    return sorted(paths, key=_sort_key)


def _sort_key(path: Path) -> list[tuple[bool, int, str]]:
    words = re.findall(r"\d+|\D+", path.name)
    return [(not word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]


def common_form(paths: Sequence[Path], headers: Sequence[ImageHeader], options: Options) -> tuple[tuple[int, int], int]:
    """Return the size (H, W) and channels for all images; raise a ValueError if they exceed the memory limit."""
    channels, (height, width) = _choose_channels(paths, headers, options), _choose_size(paths, headers, options)
    what = f"{len(paths)} pictures of {height}×{width}"
    require_room(len(paths) * height * width * channels, what, "dataset.size=64, say, makes them smaller.")
    return (height, width), channels


def _choose_channels(paths: Sequence[Path], headers: Sequence[ImageHeader], options: Options) -> int:
    if options.channels:
        return options.channels
    kinds = {header.channels: path for path, header in zip(paths, headers, strict=True)}
    if len(kinds) > 1:
        raise ValueError(
            f"Some pictures are coloured ({kinds[3]}) and some are grey ({kinds[1]}); "
            "dataset.channels=3 or dataset.channels=1 makes them alike."
        )
    return headers[0].channels


def _choose_size(paths: Sequence[Path], headers: Sequence[ImageHeader], options: Options) -> tuple[int, int]:
    if options.size:
        return options.size, options.size
    sizes = {(header.height, header.width): path for path, header in zip(paths, headers, strict=True)}
    if len(sizes) == 1:
        return next(iter(sizes))
    (one, path), (other, other_path) = list(sizes.items())[:2]
    warnings.warn(
        f"The pictures differ in size ({one[0]}×{one[1]} {path.name}, {other[0]}×{other[1]} {other_path.name}): "
        f"all are resized to {DEFAULT_SIDE}×{DEFAULT_SIDE}; dataset.size says otherwise.",
        stacklevel=3,
    )
    return DEFAULT_SIDE, DEFAULT_SIDE


def read_picture_files(files: Sequence[PictureFile], folder: Path, options: Options) -> Arrays:
    """Read the listed images of a folder into arrays."""
    _class_names(files, folder)
    tell_left_out(folder, {file.path for file in files})
    headers, bad = read_headers([file.path for file in files])  # by position
    good = [files[position] for position in headers]
    if bad and not options.skip_bad:
        _refuse(bad | _damaged(files, headers), len(files))
    if not good:
        _refuse(bad, len(files), skipped=True)
    paths, found = [file.path for file in good], list(headers.values())
    size, channels = common_form(paths, found, options)
    images, damaged = read_usable(paths, size, channels)
    bad |= {list(headers)[position]: why for position, why in damaged.items()}
    if bad:
        good = [file for position, file in enumerate(files) if position not in bad]
        _leave_out(bad, files, good, options.skip_bad)
    classes = _class_names(good, folder)
    number = {name: k for k, name in enumerate(classes)}
    return Arrays(
        images=images,
        labels=np.array([number[file.label] for file in good], np.int64),
        split=np.array([file.split for file in good], np.int8),
        classes=classes,
        owner=np.array([file.client for file in good], np.int64),
    )


def read_folder(path: Path, options: Options) -> Arrays:
    """Read the images of a folder of class folders."""
    return read_picture_files(picture_files(path), path, options)._replace(owner=None)


def files_version(paths: Iterable[Path]) -> str:
    """Return a hash of files' sizes and times; entries that are not files raise errors later, when read."""
    return short_hash(*((path, _size_and_time(path)) for path in paths))


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        facts = require_file(path)
    except ValueError:
        return None
    return facts.st_size, facts.st_mtime_ns


def tell_left_out(folder: Path, taken: Collection[Path]) -> None:
    """Warn about unused files in a folder, by kind."""
    if counts := count_left_out(folder, taken):
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        warnings.warn(f"In {folder} {len(taken)} pictures were found; left out: {listed}.", stacklevel=3)


def count_left_out(folder: Path, taken: Collection[Path]) -> Counter[str]:
    """Count the unused files in a folder and its sub-folders, by kind; links are not followed."""
    counts: Counter[str] = Counter()
    for place, folders, names in os.walk(folder):
        counts[HIDDEN] += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = [name for name in folders if not name.startswith(".")]
        others = [Path(place, name) for name in names if not name.startswith(".")]
        counts.update(_kind(path) for path in others if path not in taken)
    return +counts  # the unary plus drops zeros


def _kind(path: Path) -> str:
    ending = path.suffix.lower()
    return ELSEWHERE if ending in SUFFIXES else ending or UNNAMED


def _damaged(files: Sequence[PictureFile], headers: Collection[int]) -> dict[int, str]:
    """Return the errors of images with a valid header but damaged pixels, by position."""
    places = list(headers)
    _, bad = read_usable([files[place].path for place in places], (1, 1), 1)
    return {places[position]: why for position, why in bad.items()}


def _leave_out(
    bad: Mapping[int, str], files: Sequence[PictureFile], good: Sequence[PictureFile], skip_bad: bool
) -> None:
    """Raise an error for bad images, or warn which are skipped; every client must keep at least one image."""
    if not skip_bad:
        _refuse(bad, len(files))
    if lost := {file.client for file in files} - {file.client for file in good}:
        owner = next(file.path for file in files if file.client in lost)
        raise ValueError(f"{describe_bad(bad, len(files))}\nNo picture is left of the client that {owner} is of.")
    warnings.warn(f"{describe_bad(bad, len(files))}\nThe other {len(good)} are used.", stacklevel=3)


def _refuse(bad: Mapping[int, str], count: int, *, skipped: bool = False) -> NoReturn:
    advice = "No picture is left." if skipped else "--skip-bad, or dataset.skip_bad=true, goes on without them."
    raise ValueError(f"{describe_bad(bad, count)}\n{advice}")


def _class_names(files: Sequence[PictureFile], folder: Path) -> tuple[str, ...]:
    """Return the class names, sorted; raise a ValueError if there are none, or two differ only in case."""
    names = sorted({file.label for file in files})
    if not names:
        raise ValueError(f"{folder} has no class; there is nothing to tell apart.")
    plain: dict[str, str] = {}
    for name in names:
        if (other := plain.setdefault(name.casefold(), name)) != name:
            raise ValueError(f"{folder} has the classes {other} and {name}; give both the same name, or other names.")
    return tuple(names)


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
    """Return the clients' names, from their folders or files; suffixes are kept if names would repeat."""
    paths = client_paths(path)
    short = tuple(visible(one.name if one.is_dir() else one.stem) for one in paths)
    return short if len(set(short)) == len(short) else tuple(visible(one.name) for one in paths)


def client_files(path: Path) -> list[Path]:
    """List all files of all clients: images, or one .npz file each."""
    paths = client_paths(path)
    if not paths[0].is_dir():
        return paths
    return [file.path for one in paths for file in picture_files(one, allow_empty=True)]


def read_clients(path: Path, options: Options) -> Arrays:
    """Read the images of all clients, client by client."""
    paths = client_paths(path)
    if paths[0].is_dir():
        found = [file for client, one in enumerate(paths) for file in picture_files(one, client, allow_empty=True)]
        return read_picture_files(found, path, options)
    if options.size or options.channels or options.skip_bad:
        names = "dataset.skip_bad is" if options.skip_bad else "dataset.size and dataset.channels are"
        raise ValueError(f"{names} for picture files; {paths[0]} is taken as it is.")
    total = sum(math.prod(read_shape(one)) for one in paths)
    require_room(total, f"The pictures of {len(paths)} clients", "fewer or smaller pictures are needed.")
    return _join(paths, [_read_client(one) for one in steps(paths, "Reading clients")])


def _read_client(path: Path) -> Arrays:
    """Read a client's file; without test images, its split is undecided."""
    arrays = read_prepared(path)
    return arrays if arrays.split.any() else arrays._replace(split=np.full_like(arrays.split, UNDECIDED))


def _join(paths: list[Path], clients: list[Arrays]) -> Arrays:
    """Concatenate the clients' arrays, after checking that classes and image sizes agree."""
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
