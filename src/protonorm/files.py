"""File input and output: atomic writes, checksums, owner-only permissions and careful reading.

Also temporary folders; those left behind by killed processes are removed by the next process. Does not import torch.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from filelock import FileLock, Timeout

CHECKSUM = "checksum"  # last member of a sealed JSON object
CHANGED = "it was changed after it was written, as its checksum says"
DIGITS = 32  # hexadecimal digits of a checksum: half a SHA-256
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700  # files derived from a user's data are readable by their owner only


def checksum(content: bytes | bytearray | memoryview) -> str:
    """Return a truncated SHA-256 of the bytes."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing with owner-only permissions."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE))


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents with owner-only permissions."""
    if not path.is_dir():
        if path.parent != path:
            make_folder(path.parent)
        path.mkdir(PRIVATE_FOLDER, exist_ok=True)


def refuse_existing(path: Path, what: str) -> None:
    """Raise ValueError if a path exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} is there already, and it is not empty; {what} gets a folder of its own.")


TEMPORARY = r"\.[0-9a-f]{16}"  # suffix of a file that is still being written


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file of an unpredictable name beside a path; on success, flush it to disk and move it to the path."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with explaining_full_disk(path):
        try:
            with open_private(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def replace(path: Path, content: bytes | bytearray) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        file.write(content)


def append(path: Path, content: bytes) -> None:
    """Append bytes to a file and flush them to disk."""
    with explaining_full_disk(path), open_private(path, "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def explaining_full_disk(path: Path) -> Iterator[None]:
    """Add the file and its folder to the error raised when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"{error.strerror}: {path} could not be written. Make space on the disk of {path.parent.absolute()}, and "
            "give the same command again",
        ) from error


def cut(path: Path, size: int) -> None:
    """Truncate a file to a size in bytes, if it is longer."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def sealed(value: Mapping[str, Any], *, pretty: bool = False, owner: str = "") -> bytes:
    """Serialise a JSON object, on a line or indented, with a checksum that also covers the owner's name."""
    indent = 2 if pretty else None
    digest = checksum((owner + json.dumps(value, indent=indent, allow_nan=False)).encode())
    return json.dumps({**value, CHECKSUM: digest}, indent=indent, allow_nan=False).encode() + b"\n"


def unsealed(content: bytes, path: Path, *, pretty: bool = False, owner: str = "") -> dict[str, Any]:
    """Parse the output of `sealed`; raise, naming the file, if any byte or the owner differs."""
    value = parse_json(content, path)
    if not isinstance(value.pop(CHECKSUM, None), str):
        raise damaged(path, "it has no checksum")
    with suppress(ValueError, RecursionError):  # NaN and similar values, which are never written
        if sealed(value, pretty=pretty, owner=owner) == content:
            return value
    raise damaged(path, CHANGED)


def format_of(content: bytes, path: Path) -> int:
    """Return the format version of a sealed, indented JSON object; older formats may lack a checksum."""
    value = parse_json(content, path)
    version = (unsealed(content, path, pretty=True) if CHECKSUM in value else value).get("format", 1)
    if type(version) is not int:  # True and 1.0 are equal to 1 in Python
        raise damaged(path, f"its format is {json.dumps(version)[:40]}, which is no whole number")
    return version


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; raise if the file is damaged."""
    return parse_json(path.read_bytes(), path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """Parse a JSON object read from a file; raise if it is damaged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise damaged(path, f"it holds a {type(value).__name__} where an object was expected")
    return value


def pretty(value: Mapping[str, Any]) -> bytes:
    """Format a JSON object with indentation."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"


def damaged(path: Path, reason: str) -> ValueError:
    """Create the error for a damaged file."""
    return ValueError(f"{path} is damaged: {reason}.")


# Tensor files are safetensors whose only metadata is a stamp: the kind of file and a checksum of all bytes, computed
# with the checksum's own characters set to BLANK.
BLANK = "0" * DIGITS
HEADER = 8  # bytes at the start of a safetensors file that encode the length of its header


def seal(content: bytes, stamp: str) -> bytearray:
    """Write the checksum into the bytes of a tensor file that was stamped with `stamp` and a blank checksum."""
    result = bytearray(content)
    offset = result.index(f'"{stamp} {BLANK}"'.encode()) + len(stamp.encode()) + 2
    result[offset : offset + DIGITS] = checksum(content).encode()
    return result


def check_seal(content: bytes, path: Path) -> str:
    """Return the stamp of a tensor file; raise if the file is damaged."""
    size = int.from_bytes(content[:HEADER], "little")
    try:
        header = json.loads(content[HEADER : HEADER + size]) if size <= len(content) else None
        stamp, _, expected = header["__metadata__"]["stamp"].rpartition(" ")  # type: ignore[index]
        sealed_part = f'"{stamp} {expected}"'.encode()
        offset = content.index(sealed_part, HEADER, HEADER + size) + len(sealed_part) - 1 - DIGITS
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(path, "it is not a whole tensor file of protonorm") from None
    digest = hashlib.sha256(memoryview(content)[:offset])
    digest.update(BLANK.encode())
    digest.update(memoryview(content)[offset + DIGITS :])
    if digest.hexdigest()[:DIGITS] != expected:
        raise damaged(path, CHANGED)
    return str(stamp)


def check_stamp(content: bytes, path: Path, stamp: str) -> bytes:
    """Return the bytes of a tensor file; raise if it is damaged or has another stamp."""
    if (actual := check_seal(content, path)) != stamp:
        raise ValueError(f"{path} is not the right file: it is stamped {actual!r}, and {stamp!r} was expected.")
    return content


LOCK = "lock"  # locked while the folder's process is alive
ENDING = r"[a-z0-9_]{8}"  # random suffix in the name of a temporary folder
TRIES = 10  # attempts to create a folder that no other process is inspecting
YOUNG = 60.0  # seconds in which a new folder may not have its lock yet


class Scratch:
    """Temporary folder with owner-only permissions that is removed when it is no longer needed."""

    def __init__(self, parent: Path | None = None, prefix: str = "protonorm-") -> None:
        """Create the folder after removing those that killed processes left in the same parent."""
        parent_folder = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent_folder, prefix)
        for tries_left in reversed(range(TRIES)):
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent_folder))  # mode 0700
            self._lock = FileLock(self.folder / LOCK)
            try:
                self._lock.acquire(timeout=0)
                return
            except Timeout:  # another process, removing abandoned folders, had the lock and may remove the folder
                if not tries_left:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def release(self) -> None:
        """Release the folder's lock because the folder has been or will be moved."""
        self._lock.release()
        (self.folder / LOCK).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and its content."""
        _empty(self.folder)
        self._lock.release()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of ended processes; keep those of other users, other names and running processes.

    A folder without a lock may belong to another program and is removed only if empty.

    Args:
        parent: Parent folder.
        prefix: Prefix of the names, ending with a hyphen; or a complete name, for a folder that is known to be ours.
    """
    complete = not prefix.endswith("-")
    for folder in parent.glob("*"):
        if not re.fullmatch(re.escape(prefix) + ("" if complete else ENDING), folder.name):
            continue
        with suppress(OSError):
            status = folder.lstat()
            owned = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            if owned and stat.S_ISDIR(status.st_mode) and _is_abandoned(folder, status):
                if complete or (folder / LOCK).exists():
                    _empty(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove a folder's content except its lock, which goes last: it marks the remaining files as ours."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)


def _is_abandoned(folder: Path, status: os.stat_result) -> bool:
    if not (folder / LOCK).exists():
        return time.time() - status.st_mtime > YOUNG
    try:
        FileLock(folder / LOCK).acquire(timeout=0).lock.release()
    except Timeout:
        return False
    return True
