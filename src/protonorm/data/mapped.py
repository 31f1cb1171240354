"""Memory-mapped copies of datasets, shared by all processes of a machine: written once, then opened quickly.

<root>/mapped/<name>-<version>/   images.npy    images, vectors or tokens, uncompressed, to be mapped
                                  rest.npz      labels, split, classes, perhaps owner, vocabulary, keys and groups
                                  about.json    number and size of the samples, sha256 of the content, and the sizes
                                                and checksums of the two files; it has a checksum itself

Only their owner can read them. Checksums are verified when a copy is opened; a damaged copy is rebuilt.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from protonorm import files
from protonorm.data.access import hash_file, reason, require_file
from protonorm.data.dataset import content_hash
from protonorm.data.prepared import Arrays, open_npz

FORMAT = 3  # of a copy; copies of other formats count as outdated
IMAGES, REST, ABOUT = "images.npy", "rest.npz", "about.json"
# names of files in an unfinished copy
OURS = re.compile(rf"{files.LOCK}|\.?(images\.npy|rest\.npz|about\.json)({files.TEMPORARY})?")
FACTS = ("samples", "size", "sha256")  # keys in about.json that describe the samples
LARGE = 2**27  # bytes from which the check of a file reports progress


class Mapped(NamedTuple):
    """Samples, mapped or in memory, and facts about them."""

    arrays: Arrays
    about: dict[str, Any]  # samples, size, sha256


def short_hash(*values: object) -> str:
    """Return a hash of ten characters of values, such as a path or a file's size and time."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:10]


def file_version(path: Path, *values: object) -> str:
    """Return a hash of a file's size and time, so that a changed file has a new version."""
    facts = require_file(path)
    return short_hash(facts.st_size, facts.st_mtime_ns, *values)


@lru_cache(maxsize=2)  # keeps samples that stay in memory, and limits checks to one per copy
def open_mapped(root: Path, name: str, version: str, read: Callable[..., Arrays], *source: Hashable) -> Mapped:
    """Open the copy of a data set, as `open_copy` does."""
    return open_copy(root, name, version, lambda: read(*source))


def open_copy(root: Path, name: str, version: str, read: Callable[[], Arrays]) -> Mapped:
    """Open the copy of this version; if it is missing or damaged, `read` the source and write it."""
    parent = root / "mapped"
    folder = parent / f"{name}-{short_hash(FORMAT, version)}"
    _remove_unfinished(parent)
    damage = ""
    if os.path.lexists(folder):
        try:
            return _read(folder)
        except ValueError as error:
            damage = str(error)
    try:
        arrays = read()
    except ValueError as error:
        if not damage:
            raise
        raise ValueError(
            f"{damage} It cannot be made again, for its source is of no use either: {error} "
            f"Bring the source back from a backup; if the data are no longer wanted, remove {folder}."
        ) from error
    owned = () if arrays.owner is None else (arrays.owner, arrays.split)
    samples, *size = arrays.images.shape
    sha256 = content_hash(arrays.images, arrays.labels, *owned, arrays.groups)
    about = {"samples": samples, "size": size, "sha256": sha256}
    try:
        if damage:
            try:
                _check(folder)  # another process may have rebuilt it in the meantime
            except ValueError:
                _remove_copy(folder)
        _write(folder, name, arrays, about)
    except OSError as error:
        problem = f"no copy can be kept in {parent} ({reason(error)})"
        warnings.warn(f"{damage} The samples stay in memory: {problem}.".lstrip(), stacklevel=2)
        return Mapped(arrays, about)
    if damage:
        warnings.warn(f"{damage} The copy {folder} has been made again from its source.", stacklevel=2)
    _remove_older(name, folder)
    return _read(folder)


def _write(folder: Path, name: str, arrays: Arrays, about: dict[str, Any]) -> None:
    """Write all files to a temporary folder, and rename it; keep the copy of a process that was faster."""
    columns: dict[str, Any] = {"labels": arrays.labels, "split": arrays.split, "classes": np.array(arrays.classes)}
    optional = {name: getattr(arrays, name) for name in ("owner", "vocabulary", "keys", "groups")}
    columns |= {name: value for name, value in optional.items() if value is not None}
    files.make_folder(folder.parent)
    with files.Scratch(folder.parent, prefix=f".{name}-") as scratch:
        temporary = scratch.folder
        with files.replacing(temporary / IMAGES) as file:
            np.save(file, arrays.images, allow_pickle=False)
        with files.replacing(temporary / REST) as file:
            np.savez(file, **columns)
        facts = {name: _facts(temporary / name) for name in (IMAGES, REST)}
        files.replace(temporary / ABOUT, files.sealed({**about, "files": facts}, pretty=True))
        scratch.release()
        try:
            os.replace(temporary, folder)
        except OSError:
            if not folder.is_dir():
                raise


def _read(folder: Path) -> Mapped:
    """Open a copy; raise a ValueError if it is damaged."""
    try:
        about = _check(folder)
        images = np.load(folder / IMAGES, mmap_mode="r", allow_pickle=False)
        with open_npz(folder / REST) as rest:
            classes, size = tuple(rest.read("classes").tolist()), rest.get("vocabulary")
            vocabulary = None if size is None else int(size)
            labels, split, owner, keys = rest.read("labels"), rest.read("split"), rest.get("owner"), rest.get("keys")
            arrays = Arrays(images, labels, split, classes, owner, vocabulary, keys, rest.get("groups"))
    except OSError as error:
        raise files.damaged(folder, reason(error)) from error
    return Mapped(arrays, about)


def _check(folder: Path) -> dict[str, Any]:
    """Verify the checksums of a copy's files, and return the facts about the samples."""
    if folder.is_symlink() or not folder.is_dir():
        raise files.damaged(folder, "it is not a folder")
    require_file(folder / ABOUT)
    about = files.unsealed((folder / ABOUT).read_bytes(), folder / ABOUT, pretty=True)
    recorded = about.get("files")
    if not isinstance(recorded, dict) or not set(FACTS) <= about.keys():
        raise files.damaged(folder / ABOUT, f"it does not tell {', '.join(FACTS)} and files")
    for file in (IMAGES, REST):
        if _facts(folder / file) != recorded.get(file):
            raise files.damaged(folder / file, "it was changed after it was written, as its checksum says")
    return {name: about[name] for name in FACTS}


def _facts(path: Path) -> dict[str, Any]:
    size, description = require_file(path).st_size, f"Checking {path.parent.name}"
    return {"bytes": size, "sha256": hash_file(path, hashlib.sha256(), description, silent_below=LARGE)}


def _remove_older(name: str, kept: Path) -> None:
    """Remove copies of earlier versions that we wrote; a process that has mapped one keeps its mapping."""
    for other in kept.parent.iterdir():
        if other != kept and re.fullmatch(re.escape(name) + "-[0-9a-f]{10}", other.name) and not other.is_symlink():
            with suppress(OSError, ValueError):
                require_file(other / ABOUT)
                if set(FACTS) <= set(files.read_json(other / ABOUT)):
                    _remove_copy(other)


def _remove_copy(folder: Path) -> None:
    """Remove the files of a copy, and its folder; raise an OSError if other files are in it."""
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    for file in (ABOUT, IMAGES, REST):
        (folder / file).unlink(missing_ok=True)
    folder.rmdir()


def _remove_unfinished(parent: Path) -> None:
    """Remove unfinished copies of killed processes; keep other hidden files."""
    with suppress(OSError):  # an unreadable folder has nothing to remove
        for folder in parent.glob(".*-*"):
            with suppress(OSError):
                if folder.is_dir() and all(OURS.fullmatch(file.name) for file in folder.iterdir()):
                    files.remove_abandoned(parent, folder.name)
