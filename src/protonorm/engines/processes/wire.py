"""Frames between a parent and its workers: a JSON header and named tensors, never code."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

from protonorm.errors import Diverged
from protonorm.tensors import Tensors, decode, encode

# Failures that a worker tells by name, so that the parent can raise the same.
NAMED: dict[type[Exception], str] = {Diverged: "diverged", ValueError: "refused", OSError: "file"}

SIZES = struct.Struct("<QQ")  # bytes of the header, bytes of the tensors


def write_frame(stream: IO[bytes], header: dict[str, Any], tensors: Tensors | None = None) -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    body = encode(tensors) if tensors else b""
    stream.write(SIZES.pack(len(text), len(body)) + text)
    stream.write(body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], Tensors] | None:
    """Receive one frame; None when the other side has gone."""
    sizes = stream.read(SIZES.size)
    if len(sizes) < SIZES.size:
        return None
    header, body = SIZES.unpack(sizes)
    text, payload = stream.read(header), stream.read(body)
    if len(text) < header or len(payload) < body:
        return None
    return json.loads(text), decode(payload) if payload else {}


def raise_error(header: dict[str, Any]) -> None:
    """Raise what went wrong in a worker, as far as it has a name."""
    for kind, name in NAMED.items():
        if header["error"] == name:
            raise kind(header["text"])
    raise RuntimeError(f"A worker failed:\n{header['text']}")
