"""Frames between a parent and its workers: a JSON header and named tensors, never code."""

from __future__ import annotations

import json
import struct
import traceback
from typing import IO, Any

from safetensors import SafetensorError

from protonorm.core.own_failures import runtime_failure
from protonorm.errors import Diverged, Failed
from protonorm.tensors import Tensors, decode, encode

# Failures that a worker tells by name, so that the parent can raise the same.
NAMED: dict[type[Exception], str] = {Diverged: "diverged", ValueError: "refused", OSError: "file", Failed: "failed"}

SIZES = struct.Struct("<QQ")  # bytes of the header, bytes of the tensors
LARGEST_HEADER, LARGEST_BODY = 2**26, 2**36  # bytes; more is no frame
CHUNK = 2**20  # bytes that are asked for at once: memory grows with what has come, not with what was announced


class BadFrame(Exception):
    """What came is no frame."""


def write_frame(stream: IO[bytes], header: dict[str, Any], tensors: Tensors | None = None) -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    body = encode(tensors) if tensors else b""
    stream.write(SIZES.pack(len(text), len(body)) + text)
    stream.write(body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], Tensors] | None:
    """Receive one frame; None when the other side has gone, BadFrame when it sends something else."""
    sizes = stream.read(SIZES.size)
    if len(sizes) < SIZES.size:
        return None
    header, body = SIZES.unpack(sizes)
    if header > LARGEST_HEADER or body > LARGEST_BODY:
        raise BadFrame(f"a frame of {header} and {body} bytes was announced")
    text, payload = _read(stream, header), _read(stream, body)
    if len(text) < header or len(payload) < body:
        return None
    try:
        found, tensors = json.loads(text), decode(payload) if payload else {}
    except (ValueError, RecursionError, SafetensorError, RuntimeError, TypeError, KeyError) as error:
        raise BadFrame(f"a frame could not be read ({error})") from error
    if not isinstance(found, dict):
        raise BadFrame("a frame has no header")
    return found, tensors


def tell_error(error: Exception) -> dict[str, str]:
    """Say what went wrong in a worker, as far as it has a name; whatever it is, the parent must hear of it."""
    said = runtime_failure(error)  # of a user's own file
    for kind, name in NAMED.items():
        if isinstance(error, kind):
            return {"error": name, "text": said or str(error)}
    return {"error": NAMED[Failed] if said else "unexpected", "text": said or traceback.format_exc()}


def raise_error(header: dict[str, Any]) -> None:
    """Raise what went wrong in a worker, as far as it has a name."""
    for kind, name in NAMED.items():
        if header["error"] == name:
            raise kind(str(header.get("text")))
    raise RuntimeError(f"A worker failed:\n{header.get('text')}")


def _read(stream: IO[bytes], size: int) -> bytes:
    """Read so many bytes, or fewer if the other side has gone."""
    if size <= CHUNK:
        return stream.read(size)
    parts = bytearray()
    while len(parts) < size and (part := stream.read(min(CHUNK, size - len(parts)))):
        parts += part
    return bytes(parts)
