"""Frames between processes: a JSON header and named tensors, never code."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

from protonorm.core import Reply
from protonorm.errors import Diverged
from protonorm.tensors import Tensors, decode, encode, prefixed, under

# Failures that a worker tells by name, so that the parent can raise the same.
SAID: dict[type[Exception], str] = {Diverged: "diverged", ValueError: "refused", OSError: "file"}

SIZES = struct.Struct("<QQ")  # bytes of the header, bytes of the tensors


def write_frame(stream: IO[bytes], header: dict[str, Any], tensors: Tensors | None = None) -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    body = encode(tensors or {})
    stream.write(SIZES.pack(len(text), len(body)) + text + body)
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
    return json.loads(text), decode(payload)


def raise_error(header: dict[str, Any]) -> None:
    """Raise what went wrong in a worker, as far as it has a name."""
    for kind, name in SAID.items():
        if header["error"] == name:
            raise kind(header["text"])
    raise RuntimeError(f"A worker failed:\n{header['text']}")


def write_reply(stream: IO[bytes], reply: Reply, seconds: float) -> None:
    """Send what a client says, reports and counted."""
    header = {"id": reply.id, "metrics": reply.metrics, "seconds": seconds}
    write_frame(stream, header, prefixed("message", reply.message) | prefixed("evaluation", reply.evaluation))


def reply_of(header: dict[str, Any], tensors: Tensors) -> Reply:
    """Read what `write_reply` sent."""
    return Reply(header["id"], under(tensors, "message"), header["metrics"], under(tensors, "evaluation"))
