"""Read picture files of one's own into arrays: all bad ones are named at once, and left out if that is wanted.

Nothing here needs torch.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from protonorm.data.access import require_room
from protonorm.data.own.folders import ImageOptions, PictureFile, choose_channels, choose_size
from protonorm.data.pictures import SUFFIXES, describe_bad, read_headers, read_usable
from protonorm.data.prepared import Arrays

HIDDEN, ELSEWHERE, UNNAMED = "hidden", "pictures that are not in a class folder", "without an ending"


def read_picture_files(
    files: Sequence[PictureFile], folder: Path, options: ImageOptions, *, skip_bad: bool = False
) -> Arrays:
    """Read pictures that were found in a folder into arrays."""
    _class_names(files, folder)
    tell_left_out(folder, {file.path for file in files})
    headers, bad = read_headers([file.path for file in files])  # by position
    good = [files[position] for position in headers]
    if bad and not skip_bad:
        _refuse(bad | _damaged(files, headers), len(files))
    if not good:
        _refuse(bad, len(files), skipped=True)
    paths, found = [file.path for file in good], list(headers.values())
    channels, size = choose_channels(paths, found, options), choose_size(paths, found, options)
    require_room(
        len(good) * size[0] * size[1] * channels,
        f"{len(good)} pictures of {size[0]}×{size[1]}",
        "dataset.size=64, say, makes them smaller.",
    )
    images, damaged = read_usable(paths, size, channels)
    bad |= {list(headers)[position]: why for position, why in damaged.items()}
    if bad:
        good = [file for position, file in enumerate(files) if position not in bad]
        _leave_out(bad, files, good, skip_bad)
    classes = _class_names(good, folder)
    number = {name: k for k, name in enumerate(classes)}
    return Arrays(
        images=images,
        labels=np.array([number[file.label] for file in good], np.int64),
        split=np.array([file.split for file in good], np.int8),
        classes=classes,
        owner=np.array([file.client for file in good], np.int64),
    )


def tell_left_out(folder: Path, taken: Collection[Path]) -> None:
    """Say how many files of which kind in a folder are not used, if there are any."""
    if counts := count_left_out(folder, taken):
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        warnings.warn(f"In {folder} {len(taken)} pictures were found; left out: {listed}.", stacklevel=3)


def count_left_out(folder: Path, taken: Collection[Path]) -> Counter[str]:
    """Count what is in a folder, and in those inside it, and is not taken: by kind; links are not followed."""
    counts: Counter[str] = Counter()
    for place, folders, names in os.walk(folder):
        counts[HIDDEN] += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = [name for name in folders if not name.startswith(".")]
        others = [Path(place, name) for name in names if not name.startswith(".")]
        counts.update(_kind(path) for path in others if path not in taken)
    return +counts  # without zeros


def _kind(path: Path) -> str:
    ending = path.suffix.lower()
    return ELSEWHERE if ending in SUFFIXES else ending or UNNAMED


def _damaged(files: Sequence[PictureFile], headers: Collection[int]) -> dict[int, str]:
    """Look for pictures whose header is good and whose pixels are not."""
    places = list(headers)
    _, bad = read_usable([files[place].path for place in places], (1, 1), 1)
    return {places[position]: why for position, why in bad.items()}


def _leave_out(
    bad: Mapping[int, str], files: Sequence[PictureFile], good: Sequence[PictureFile], skip_bad: bool
) -> None:
    """Refuse bad pictures, or say which are left out; every client must have one that is good."""
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
    """Name the classes, sorted; refuse none, and names that differ in capitals alone."""
    names = sorted({file.label for file in files})
    if not names:
        raise ValueError(f"{folder} has no class; there is nothing to tell apart.")
    plain: dict[str, str] = {}
    for name in names:
        if (other := plain.setdefault(name.casefold(), name)) != name:
            raise ValueError(f"{folder} has the classes {other} and {name}; give both the same name, or other names.")
    return tuple(names)
