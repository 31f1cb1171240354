"""Checks of paths and files before they are opened: location, kind, readability, memory limit. Nothing needs torch."""

import os
import stat
from pathlib import Path
from typing import Any

from protonorm.core.progress import report

LIMIT = 8 * 2**30  # maximum bytes of memory of a dataset
CHUNK = 2**20  # bytes read at once

# Not opened: reading a pipe may block forever, and a device may have no end.
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
KINDS |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")


class Unreadable(ValueError):
    """Error for a file that exists but cannot be read."""


def expand(path: Path) -> Path:
    """Expand ~ in a path; raise a ValueError if the home folder is unknown."""
    _check_characters(path)
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{path} cannot be found: the home folder that {path.parts[0]} means is unknown.") from None


def real_path(path: Path) -> Path:
    """Resolve ~ and symbolic links; raise a ValueError if that fails."""
    expanded = expand(path)
    try:
        return expanded.resolve()
    except RuntimeError:
        raise ValueError(f"{path} cannot be found: its links lead in a circle.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be found: {reason(error)}.") from None


def require_file(path: Path, noun: str = "file") -> os.stat_result:
    """Return a file's stat result; raise a ValueError, without opening it, if it is not a regular file."""
    _check_characters(path)
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"There is no {noun} {path}.") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {reason(error)}.") from None
    if not stat.S_ISREG(facts.st_mode):
        kind = KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
        raise ValueError(f"{path} is {kind}, not a file; it was not opened.")
    return facts


def require_room(size: int, noun: str, advice: str) -> None:
    """Raise a ValueError if `size` bytes exceed the memory limit, before any memory is allocated."""
    if size > LIMIT:
        raise ValueError(f"{noun} would take {size / 2**30:.1f} GiB, the limit is {LIMIT / 2**30:.1f} GiB; {advice}")


def hash_file(path: Path, digest: Any, description: str, *, silent_below: int = 0) -> str:
    """Return a file's hex digest; report progress unless the file has fewer than `silent_below` bytes."""
    done, size = 0, path.stat().st_size
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            done += count
            if size >= silent_below:
                report(description, done, size)
    return str(digest.hexdigest())


def reason(error: OSError) -> str:
    """Return the system's error text, without its number."""
    return error.strerror or str(error)


def _check_characters(path: Path) -> None:
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ValueError(f"{str(path)!r} cannot be the path of a file: it holds a character that no name can have.")
