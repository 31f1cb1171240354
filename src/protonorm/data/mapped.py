"""Copies of picture sets that all processes of a machine can map into memory: made once, then opened in no time.

<root>/mapped/<name>-<version>/   images.npy    plain, to be mapped
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
    """Pictures, mapped or in memory, and facts about them."""

    arrays: Arrays
    about: dict[str, Any]  # samples, size, sha256


def short_hash(*values: object) -> str:
    """Condense values, such as a path or a file's size and time, to ten characters."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:10]


def file_version(path: Path, *values: object) -> str:
    """Condense a file's size and time, so that a changed file gets another version."""
    try:
        found = path.stat()
    except OSError:
        raise ValueError(f"There is no file {path}.") from None
    return short_hash(found.st_size, found.st_mtime_ns, *values)


def open_mapped(root: Path, name: str, version: str, read: Callable[[Source], Arrays], source: Source) -> Mapped:
    """Open the copy of this version; if there is none, read the source and make it."""
    return _open(root / "mapped", name, version, read, source)


@lru_cache(maxsize=2)  # for pictures that stay in memory
def _open(place: Path, name: str, version: str, read: Callable[[Any], Arrays], source: Any) -> Mapped:
    folder = place / f"{name}-{version}"
    if not folder.exists():
        arrays = read(source)
        samples, *size = arrays.images.shape
        about = {"samples": samples, "size": size, "sha256": content_hash(arrays)}
        try:
            _write(folder, arrays, about)
        except OSError as error:
            reason = error.strerror or error
            warnings.warn(f"The pictures stay in memory: no copy can be kept in {place} ({reason}).", stacklevel=2)
            return Mapped(arrays, about)
        _remove_older(name, folder)
    return _read(folder)


def content_hash(arrays: Arrays) -> str:
    """Hash pictures and labels, and owners and split if owners are given."""
    digest = hashlib.sha256()
    given = (arrays.owner, arrays.split) if arrays.owner is not None else ()
    for array in (arrays.images, arrays.labels, *given):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _write(folder: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    """Write all files into a temporary folder, and move it to its place; a faster process's copy is kept."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        np.save(beside / "images.npy", arrays.images, allow_pickle=False)
        rest: dict[str, Any] = {"labels": arrays.labels, "split": arrays.split, "classes": np.array(arrays.classes)}
        np.savez(beside / "rest.npz", **rest | ({} if arrays.owner is None else {"owner": arrays.owner}))
        (beside / "about.json").write_bytes(pretty(about))
        for file in beside.iterdir():
            with file.open("r+b") as written:  # some systems flush only files that are open for writing
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
    """Remove the copies of earlier versions; a process that still maps one keeps what it mapped."""
    for other in kept.parent.iterdir():
        if other != kept and re.fullmatch(re.escape(name) + "-[0-9a-f]{10}", other.name):
            shutil.rmtree(other, ignore_errors=True)
