"""What crosses between driver and actors: bytes that hold a JSON header, named tensors, and perhaps a whole file."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

from protonorm.engines.processes.wire import SIZES, BadFrame, read_frame
from protonorm.tensors import Tensors, encode


def pack(header: dict[str, Any], tensors: Tensors | None = None, file: bytes = b"") -> bytes:
    """Write a frame, and behind it a file as it is."""
    text = json.dumps(header).encode()
    body = encode(tensors) if tensors else b""
    return b"".join([SIZES.pack(len(text), len(body)), text, body, file])


def unpack(content: bytes) -> tuple[dict[str, Any], Tensors, bytes]:
    """Read what `pack` wrote."""
    stream = BytesIO(content)
    frame = read_frame(stream)
    if frame is None:
        raise BadFrame("a frame ends too soon")
    return *frame, stream.read()
