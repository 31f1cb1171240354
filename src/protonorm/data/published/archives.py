"""Reading of archive members into memory. Nothing is ever extracted to a path that an archive names."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from protonorm.data.access import Unreadable, reason, require_file

LARGEST = 2**30  # maximum bytes of a member; the largest official one has 155 million


def tar_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of the wanted files of a .tar.gz, in archive order."""
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = plain(member.name)
            if not member.isfile() or not wanted(name):
                continue
            check_size(path, name, member.size)
            file = archive.extractfile(member)
            content = file.read() if file else b""
            if len(content) != member.size:
                raise EOFError(f"{name} ends early")
            yield name, content


def zip_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of the wanted files of a .zip, sorted by name."""
    with reading(path), zipfile.ZipFile(path) as archive:
        for member in sorted(archive.infolist(), key=lambda one: one.filename):
            name = plain(member.filename)
            if member.is_dir() or not wanted(name):
                continue
            check_size(path, name, member.file_size)
            yield name, archive.read(member)


def zip_names(path: Path) -> list[str]:
    """List the files of a .zip, sorted."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return sorted(plain(member.filename) for member in archive.infolist() if not member.is_dir())


def gunzip(path: Path) -> bytes:
    """Read a file, decompressed if it is gzip."""
    with reading(path):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(LARGEST + 1)
    check_size(path, path.name, len(content))
    return content


def plain(name: str) -> str:
    """Return a member's name without ./ and empty parts."""
    return str(PurePosixPath(name))


def check_size(path: Path, name: str, size: int) -> None:
    """Raise a ValueError if a member is larger than any official one."""
    if size > LARGEST:
        raise ValueError(f"{name} in {path} has {size} bytes: it is not the official archive.")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Require a regular file, and convert the errors of a damaged archive to a ValueError."""
    require_file(path)
    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        gzip.BadGzipFile,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}).") from error
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {reason(error)}.") from error
