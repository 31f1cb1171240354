"""A copy of pictures that processes can map, and its fingerprint: made once, then opened in no time.

<root>/mapped/<name>-<mark>/   images.npy    plain, to be mapped
                               rest.npz      labels, split, classes and perhaps owner
                               about.json    number and size of the pictures, sha256 of the content
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from protonorm.data.prepared import Arrays
from protonorm.files import pretty, read_json

Source = TypeVar("Source", bound=Hashable)


class Mapped(NamedTuple):
    """Pictures, mapped or in memory, and what tells them from others."""

    arrays: Arrays
    about: dict[str, Any]  # samples, size, sha256


def stamp(*words: object) -> str:
    """Condense what a copy was made from, such as a file's size and time, to ten characters."""
    return hashlib.sha256(repr(words).encode()).hexdigest()[:10]


def stamp_of_file(path: Path, *words: object) -> str:
    """Condense a file's size and time: another file in its place gets another stamp."""
    try:
        found = path.stat()
    except OSError:
        raise ValueError(f"There is no file {path}.") from None
    return stamp(found.st_size, found.st_mtime_ns, *words)


def open_mapped(root: Path, name: str, mark: str, read: Callable[[Source], Arrays], source: Source) -> Mapped:
    """Open the copy with this mark; if it is not there, read the source and make it."""
    return _opened(root / "mapped", name, mark, read, source)


@lru_cache(maxsize=2)  # for pictures that stay in memory
def _opened(place: Path, name: str, mark: str, read: Callable[[Any], Arrays], source: Any) -> Mapped:
    folder = place / f"{name}-{mark}"
    if not folder.exists():
        arrays = read(source)
        samples, *size = arrays.images.shape
        about = {"samples": samples, "size": size, "sha256": fingerprint(arrays)}
        try:
            _write(folder, arrays, about)
        except OSError as error:
            reason = error.strerror or error
            warnings.warn(f"The pictures stay in memory: no copy can be kept in {place} ({reason}).", stacklevel=2)
            return Mapped(arrays, about)
        _remove_older(name, folder)
    return _read(folder)


def fingerprint(arrays: Arrays) -> str:
    """Hash pictures and labels, and who has them if that is given."""
    digest = hashlib.sha256()
    given = (arrays.owner, arrays.split) if arrays.owner is not None else ()
    for array in (arrays.images, arrays.labels, *given):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _write(folder: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    """Write all files into a folder beside, and move it to its place at once; a faster process's folder is kept."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        np.save(beside / "images.npy", arrays.images, allow_pickle=False)
        rest: dict[str, Any] = {"labels": arrays.labels, "split": arrays.split, "classes": np.array(arrays.classes)}
        np.savez(beside / "rest.npz", **rest | ({} if arrays.owner is None else {"owner": arrays.owner}))
        (beside / "about.json").write_bytes(pretty(about))
        for file in beside.iterdir():
            with file.open("r+b") as written:  # some systems bring only open-for-writing files to the disk
                os.fsync(written.fileno())
        beside.chmod(0o755)
        if not folder.exists():
            os.replace(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _read(folder: Path) -> Mapped:
    try:
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        with np.load(folder / "rest.npz", allow_pickle=False) as rest:
            owner = rest.get("owner")
            classes = tuple(rest["classes"].tolist())
            arrays = Arrays(images, rest["labels"], rest["split"], classes, owner)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} is damaged; remove it, it will be made again ({error}).") from error
    return Mapped(arrays, read_json(folder / "about.json"))


def _remove_older(name: str, kept: Path) -> None:
    """Remove copies of what the data were before; a process that still maps one keeps what it mapped."""
    for other in kept.parent.iterdir():
        if other != kept and re.fullmatch(re.escape(name) + "-[0-9a-f]{10}", other.name):
            shutil.rmtree(other, ignore_errors=True)
