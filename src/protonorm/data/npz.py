"""Read .npz files that may be damaged or lie: nothing is unpickled, and sizes are compared before memory is taken.

Nothing here needs torch.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report
from protonorm.data.access import reason, require_file, require_room

HEADER = 2**16  # bytes within which an array's header ends
PIECE = 2**24  # bytes that are unpacked at once
PACKINGS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1100}  # bytes that a packed one can stand for, at most
END = 22  # bytes of the record at the end of an archive, before its comment


class Header(NamedTuple):
    """What an array says of itself."""

    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[Any]
    start: int  # bytes before its values


class NpzReader:
    """The arrays of an open .npz file; whatever is wrong with it is a ValueError."""

    def __init__(self, archive: zipfile.ZipFile, file: IO[bytes], size: int) -> None:
        """Look at the names; `size` is that of the file."""
        self._archive, self._size = archive, size
        listed = archive.infolist()
        self._members = {info.filename.removesuffix(".npy"): info for info in listed}
        if len(self._members) < len(listed):
            raise ValueError("it holds two arrays of the same name")
        if len(listed) != _count(archive, file):
            raise ValueError("it is damaged: arrays are missing")
        for name, info in self._members.items():
            if info.compress_type not in PACKINGS:
                raise ValueError(f"{name} is packed in a way that numpy does not use")
            archive.open(info).close()  # compares the two places in which an archive has each name

    def __contains__(self, name: str) -> bool:
        """Tell whether there is an array of this name."""
        return name in self._members

    def shape(self, name: str) -> tuple[int, ...]:
        """Read an array's shape without its values."""
        with _told(), self._archive.open(self._member(name)) as file:
            return self._header(name, file.read(HEADER)).shape

    def read(self, name: str) -> NDArray[Any]:
        """Read an array, after a look at its size."""
        with _told(), self._archive.open(self._member(name)) as file:
            piece = file.read(HEADER)
            header = self._header(name, piece)
            content = np.empty(self._member(name).file_size - header.start, np.uint8)
            piece, done = piece[header.start :], 0
            while piece:
                content[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                done += len(piece)
                if len(content) > PIECE:
                    report(f"Reading {name}", done, len(content))
                piece = file.read(PIECE)  # at the end the checksum is compared
            if done < len(content):
                raise ValueError(f"{name} ends early")
        return content.view(header.dtype).reshape(header.shape, order="F" if header.columns_first else "C")

    def get(self, name: str) -> NDArray[Any] | None:
        """Read an array if it is there."""
        return self.read(name) if name in self else None

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise ValueError(f"it lacks {name}")
        return self._members[name]

    def _header(self, name: str, content: bytes) -> Header:
        """Read an array's header, and refuse one that does not fit what is there."""
        header = _read_header(content)
        info = self._member(name)
        claimed = math.prod(header.shape) * header.dtype.itemsize
        if header.dtype.hasobject:
            raise ValueError(f"{name} holds objects of Python, which are never loaded")
        if min(header.shape, default=0) < 0 or claimed != info.file_size - header.start:
            raise ValueError(
                f"{name} has shape {header.shape} and type {header.dtype} by its header, which does not fit "
                f"its {info.file_size - header.start} bytes"
            )
        if info.compress_size > self._size or info.file_size > PACKINGS[info.compress_type] * info.compress_size:
            raise ValueError(f"{name} cannot have {info.file_size} bytes in a file of {self._size}")
        require_room(claimed, name, "fewer or smaller samples are needed")
        return header


@contextmanager
def open_npz(path: Path, what: str = "prepared data") -> Iterator[NpzReader]:
    """Open an .npz file without unpickling anything; whatever is wrong with it becomes a sentence."""
    size = require_file(path).st_size
    try:
        with ExitStack() as opened:
            with _told():
                file = opened.enter_context(path.open("rb"))
                archive = opened.enter_context(zipfile.ZipFile(file))
                reader = NpzReader(archive, file, size)
            yield reader
    except ValueError as error:
        raise ValueError(f"{path} cannot be used as {what}: {str(error).rstrip('.')}.") from error


@contextmanager
def _told() -> Iterator[None]:
    """Turn what a damaged file gives, which is almost any error, into one that says why."""
    try:
        yield
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is not a whole .npz archive ({error})") from error
    except OSError as error:
        raise ValueError(reason(error)) from error
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _count(archive: zipfile.ZipFile, file: IO[bytes]) -> int:
    """Read how many members an archive has by its own account, which zipfile does not compare."""
    file.seek(-END - len(archive.comment), io.SEEK_END)
    return int.from_bytes(file.read(END)[10:12], "little")


def _read_header(content: bytes) -> Header:
    """Read the header at the beginning of an array's bytes."""
    file = io.BytesIO(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote
        first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(file)
    return Header(shape, columns_first, dtype, file.tell())
