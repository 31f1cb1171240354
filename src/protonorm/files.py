"""Files that are there whole or not at all, that carry a checksum, that only their owner can read, and read with care.

Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

CHECKSUM = "checksum"  # the last member of a sealed JSON object
DIGITS = 32  # hexadecimal digits of a checksum: half a SHA-256
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700  # what is made of a user's data is for its owner only


def checksum(content: bytes | bytearray | memoryview) -> str:
    """Condense bytes, so that any change of them shows."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing that only its owner can read."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE))


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are not there, for their owner only."""
    if not path.is_dir():
        if path.parent != path:
            make_folder(path.parent)
        path.mkdir(PRIVATE_FOLDER, exist_ok=True)


def temporary_name(path: Path) -> Path:
    """Name the file beside a place in which its new content is written."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def replace(path: Path, content: bytes | bytearray) -> None:
    """Write a file beside its place, bring it to the disk, and move it there."""
    beside = temporary_name(path)
    try:
        with open_private(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def append(path: Path, content: bytes) -> None:
    """Add bytes to the end of a file, and bring them to the disk."""
    with open_private(path, "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def cut(path: Path, size: int) -> None:
    """Shorten a file to its first bytes, if it is longer."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def sealed(value: Mapping[str, Any], *, pretty: bool = False, owner: str = "") -> bytes:
    """Write a JSON object with a checksum inside: one line, or indented for people.

    The checksum is one of the owner's name too: what was taken from another owner's file does not fit.
    """
    indent = 2 if pretty else None
    text = json.dumps(value, indent=indent, allow_nan=False)
    found = checksum((owner + text).encode())
    return json.dumps({**value, CHECKSUM: found}, indent=indent, allow_nan=False).encode() + b"\n"


def unsealed(content: bytes, path: Path, *, pretty: bool = False, owner: str = "") -> dict[str, Any]:
    """Read what `sealed` wrote; a single changed byte, or another owner, is noticed, and the file named."""
    found = parse_json(content, path)
    if not isinstance(found.pop(CHECKSUM, None), str):
        raise damaged(path, "it has no checksum")
    try:
        same = sealed(found, pretty=pretty, owner=owner) == content
    except (ValueError, RecursionError):  # NaN and the like, which nobody writes
        same = False
    if not same:
        raise damaged(path, "it was changed after it was written, as its checksum says")
    return found


def format_of(content: bytes, path: Path) -> Any:
    """Read of which format a sealed, indented JSON object is; one that never had a checksum may be an older one."""
    found = parse_json(content, path)
    return (unsealed(content, path, pretty=True) if CHECKSUM in found else found).get("format", 1)


def read_lines(path: Path) -> list[bytes]:
    """Read the complete lines of a file; a file that is not there has none."""
    return complete_lines(path.read_bytes() if path.exists() else b"")


def complete_lines(text: bytes) -> list[bytes]:
    """Split text into its lines; what stands behind the last line break is none yet."""
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object, or say that the file is damaged."""
    return parse_json(path.read_bytes(), path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """Parse one JSON object that was read from a file, or say that it is damaged."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise damaged(path, f"it holds a {type(found).__name__} where an object was expected")
    return found


def pretty(value: Mapping[str, Any]) -> bytes:
    """Write JSON for people."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"


def damaged(path: Path, reason: str) -> ValueError:
    """Say what is wrong with a file."""
    return ValueError(f"{path} is damaged: {reason}.")


# Tensor files are safetensors, whose only metadata is a stamp: what the file is, and a checksum of all its bytes, taken
# while the checksum's own place is blank.
BLANK = "0" * DIGITS
HEADER = 8  # bytes at the beginning of a safetensors file: the length of its header


def seal(content: bytes, stamp: str) -> bytearray:
    """Put the checksum into the bytes of a tensor file that was stamped with `stamp` and a blank checksum."""
    whole = bytearray(content)
    place = whole.index(f'"{stamp} {BLANK}"'.encode()) + len(stamp.encode()) + 2
    whole[place : place + DIGITS] = checksum(content).encode()
    return whole


def check_seal(content: bytes, path: Path) -> str:
    """Return the stamp of a tensor file, or say that the file is damaged."""
    size = int.from_bytes(content[:HEADER], "little")
    try:
        header = json.loads(content[HEADER : HEADER + size]) if size <= len(content) else None
        stamp, _, found = header["__metadata__"]["stamp"].rpartition(" ")  # type: ignore[index]
        sealed_part = f'"{stamp} {found}"'.encode()
        place = content.index(sealed_part, HEADER, HEADER + size) + len(sealed_part) - 1 - DIGITS
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(path, "it is not a whole tensor file of protonorm") from None
    digest = hashlib.sha256(memoryview(content)[:place])
    digest.update(BLANK.encode())
    digest.update(memoryview(content)[place + DIGITS :])
    if digest.hexdigest()[:DIGITS] != found:
        raise damaged(path, "it was changed after it was written, as its checksum says")
    return str(stamp)


def read_sealed(path: Path, stamp: str) -> bytes:
    """Read the bytes of a tensor file, if it is whole and what the stamp says."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing.") from None
    found = check_seal(content, path)
    if found != stamp:
        raise ValueError(f"{path} is not the right file: it is stamped {found!r}, and {stamp!r} was expected.")
    return content
