"""Files that are there whole or not at all, and that are read with care."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def replace(path: Path, content: bytes) -> None:
    """Write a file beside its place, bring it to the disk, and move it there."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Add one line of JSON."""
    with path.open("ab") as file:
        file.write(json.dumps(value, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[bytes]:
    """Read the complete lines of a file; a file that is not there has none."""
    text = path.read_bytes() if path.exists() else b""
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object, or say that the file is damaged."""
    return parse_json(path.read_bytes(), path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """Parse one JSON object that was read from a file, or say that it is damaged."""
    try:
        found = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: it is not valid JSON ({error}).") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds a {type(found).__name__} where an object was expected.")
    return found


def pretty(value: dict[str, Any]) -> bytes:
    """Write JSON for people."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"
