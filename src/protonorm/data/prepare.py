"""From official archives to a file of the prepared form. Nothing here needs torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protonorm.data.official import SOURCES, Source
from protonorm.data.official.members import gunzip
from protonorm.data.places import data_root
from protonorm.data.prepared import Arrays, Tell, write_prepared
from protonorm.registry import nearest

CHUNK = 2**20


def silent(what: str, done: int, whole: int) -> None:
    """Tell nobody."""


def prepare(
    name: str,
    folder: Path,
    root: Path | None = None,
    *,
    checksums: Mapping[str, str] | None = None,
    checked: bool = True,
    tell: Tell = silent,
) -> tuple[Path, Arrays]:
    """Make NAME.npz from the official files in a folder; on any failure nothing is written.

    `checksums`, by file name, take the place of the official ones; `checked=False` lets any by.
    """
    source, files = find_files(name, folder)
    if checked:
        known = {file.name: file.md5 for file in source.files} | dict(checksums or {})
        for file, path in files.items():
            require_md5(path, known[file], unpacked=source.unpacked, tell=tell)
    arrays: Arrays = source.reader.load()(files, tell)
    path = data_root(root) / f"{name}.npz"
    tell(f"writing {path.name}", 0, 1)
    write_prepared(path, arrays)
    tell(f"writing {path.name}", 1, 1)
    return path, arrays


def sources(name: str) -> tuple[Source, ...]:
    """Look up what a data set is made from."""
    if name not in SOURCES:
        raise ValueError(f"{name!r} cannot be prepared; {nearest(name, SOURCES)}")
    return SOURCES[name]


def find_files(name: str, folder: Path) -> tuple[Source, dict[str, Path]]:
    """Find the first kind of archive that is there with all its files."""
    choices = sources(name)
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}.")
    for source in choices:
        found = {file.name: _there(folder, file.name, plain=source.unpacked) for file in source.files}
        if None not in found.values():
            return source, {file: path for file, path in found.items() if path}
    raise ValueError(f"{folder} does not hold {wanted(name)}.")


def wanted(name: str) -> str:
    """Say which files make a data set."""
    return " or ".join(_listed([file.name for file in source.files]) for source in sources(name))


def require_md5(path: Path, md5: str, *, unpacked: bool, tell: Tell = silent) -> None:
    """Refuse a file that is not the one whose checksum is known."""
    found = hashlib.md5(gunzip(path), usedforsecurity=False) if unpacked else _md5(path, tell)
    if found.hexdigest() != md5:
        raise ValueError(
            f"{path} is not the official file, or it is incomplete: its md5 is {found.hexdigest()}, expected {md5}. "
            "--no-check takes it all the same."
        )


def _md5(path: Path, tell: Tell) -> Any:
    digest, done, size = hashlib.md5(usedforsecurity=False), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            tell(f"checking {path.name}", done, size)
    return digest


def _there(folder: Path, name: str, *, plain: bool) -> Path | None:
    """Find a file, or what gzip has packed in it if that will do."""
    names = [name, name.removesuffix(".gz")] if plain else [name]
    return next((folder / one for one in names if (folder / one).is_file()), None)


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
