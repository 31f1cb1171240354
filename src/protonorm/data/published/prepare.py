"""Make a prepared file from official archives. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from protonorm.core.progress import report
from protonorm.core.registry import nearest
from protonorm.data.access import expand, hash_file, require_file
from protonorm.data.prepared import Arrays, data_root, write_prepared
from protonorm.data.published.archives import SOURCES, Source
from protonorm.data.published.archives.members import gunzip, reading


def prepare(
    name: str,
    folder: Path,
    root: Path | None = None,
    *,
    checksums: Mapping[str, str] | None = None,
    checked: bool = True,
) -> tuple[Path, Arrays]:
    """Make NAME.npz from the official files in a folder; on any failure nothing is written.

    `checksums`, by file name, take the place of the official ones; `checked=False` takes any file.
    """
    source, files = find_files(name, folder)
    if checked:
        known = {file.name: file.md5 for file in source.files} | dict(checksums or {})
        for file, path in files.items():
            require_md5(path, known[file], unpacked=source.unpacked)
    arrays: Arrays = source.reader.load()(files)
    path = data_root(root) / f"{name}.npz"
    report(f"Writing {path.name}", 0, 1)
    write_prepared(path, arrays)
    report(f"Writing {path.name}", 1, 1)
    return path, arrays


def sources(name: str) -> tuple[Source, ...]:
    """Look up what a data set is made from."""
    if name not in SOURCES:
        raise ValueError(f"{name!r} cannot be prepared; {nearest(name, SOURCES)}")
    return SOURCES[name]


def find_files(name: str, folder: Path) -> tuple[Source, dict[str, Path]]:
    """Find the first kind of archive that is there with all its files."""
    choices = sources(name)
    folder = expand(folder)
    if os.path.isfile(folder):
        folder = folder.parent
    if not os.path.isdir(folder):
        raise ValueError(f"There is no folder {folder}.")
    for source in choices:
        found = {file.name: _find_file(folder, file.name, plain=source.unpacked) for file in source.files}
        if None not in found.values():
            return source, {file: path for file, path in found.items() if path}
    raise ValueError(f"{folder} does not hold {wanted(name)}.")


def wanted(name: str) -> str:
    """Say which files a data set is made from."""
    return " or ".join(_listed([file.name for file in source.files]) for source in sources(name))


def require_md5(path: Path, md5: str, *, unpacked: bool) -> None:
    """Refuse a file that is not the one whose checksum is known."""
    found = hashlib.md5(gunzip(path), usedforsecurity=False).hexdigest() if unpacked else _md5(path)
    if found != md5:
        raise ValueError(
            f"{path} is not the official file, or it is incomplete: its md5 is {found}, expected {md5}. "
            "--no-check takes it all the same."
        )


def _md5(path: Path) -> str:
    with reading(path):
        return hash_file(path, hashlib.md5(usedforsecurity=False), f"Checking {path.name}")


def _find_file(folder: Path, name: str, *, plain: bool) -> Path | None:
    """Find a file, or its unpacked form if that will do; refuse what has its name and is no file."""
    names = [name, name.removesuffix(".gz")] if plain else [name]
    found = next((folder / one for one in names if os.path.exists(folder / one)), None)
    if found:
        require_file(found)
    return found


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
