"""Files of a record that may be packed, as NAME.xz in place of NAME: either form is read. Nothing here needs torch.

Where both forms lie in a folder, the plain one counts. What a packed file may grow to is limited: a few bytes can be
made to fill any memory.
"""

from __future__ import annotations

import lzma
from pathlib import Path

from protonorm.files import complete_lines, damaged

ENDING = ".xz"
TEXT = 2**29  # bytes at most of a packed text: 512 MiB
ARRAYS = 2**31  # bytes at most of packed arrays: 2 GiB
MEMORY = 2**27  # bytes that unpacking may take beside what comes out
WINDOW = 2**12, 2**26  # bytes that packing looks back, at least and at most; packing takes ten times as many


def packed_path(path: Path) -> Path:
    """Name the packed form of a file."""
    return path.with_name(path.name + ENDING)


def is_packed(path: Path) -> bool:
    """Tell whether a file is there in its packed form alone."""
    return not path.exists() and packed_path(path).exists()


def found_path(path: Path) -> Path:
    """Name the form in which a file is there; the plain one if it is there in neither."""
    return packed_path(path) if is_packed(path) else path


def read_either(path: Path, most: int) -> bytes | None:
    """Read a file in the form in which it is there; None if it is there in neither."""
    if is_packed(path):
        return unpack(packed_path(path), most)
    return path.read_bytes() if path.exists() else None


def read_either_lines(path: Path) -> list[bytes]:
    """Read the complete lines of a file in the form in which it is there; a file that is not there has none."""
    return complete_lines(read_either(path, TEXT) or b"")


def pack(content: bytes, path: Path, most: int) -> bytes:
    """Pack the content of a file; refuse what would not be unpacked again."""
    if len(content) > most:
        raise ValueError(f"{path} is too large to be packed: it has more than {_size(most)}.")
    window = min(max(WINDOW[0], 1 << len(content).bit_length()), WINDOW[1])  # more than there is would be of no use
    strongest = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": window}
    return lzma.compress(content, filters=[strongest])


def unpack(path: Path, most: int) -> bytes:
    """Unpack a file; one that is damaged, or that becomes too large, is refused."""
    machine = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        content = machine.decompress(path.read_bytes(), max_length=most + 1)
    except lzma.LZMAError as error:
        raise damaged(path, f"it cannot be unpacked ({error})") from error
    if len(content) > most:
        raise ValueError(f"{path} is refused: unpacked it has more than {_size(most)}.")
    if not machine.eof:
        raise damaged(path, "it is cut short")
    if machine.unused_data:
        raise damaged(path, "something stands behind its end")
    return content


class Blocks:
    """Pieces of a file: of a plain one each is read when it is asked for, a packed one is unpacked once."""

    def __init__(self, path: Path) -> None:
        self.path = found_path(path)  # the form that is read
        self._whole = unpack(self.path, ARRAYS) if self.path != path else None

    def read(self, start: int, size: int) -> bytes:
        """Read so many bytes from a place on; fewer if the file ends before."""
        if self._whole is not None:
            return self._whole[start : start + size]
        if not self.path.exists():
            raise ValueError(f"{self.path} is missing.")
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)


def _size(most: int) -> str:
    return f"{most / 2**20:g} MiB"
