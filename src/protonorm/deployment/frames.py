"""The bytes that travel: a fixed beginning, a JSON header, and tensors as safetensors; looked at before it is read.

    4 bytes   PNFL
    4 bytes   length of the header, little-endian
    8 bytes   length of the tensors, little-endian
    header    JSON, UTF-8: an object
    tensors   safetensors without metadata; nothing if there are none

Everything here takes what anybody may send: it gives a header and tensors, or a BadFrame with a sentence, and it takes
no more memory than a few times what has arrived.
"""

from __future__ import annotations

import json
import struct
from math import prod
from typing import Any

from safetensors import SafetensorError

from protonorm.core.types import shortened
from protonorm.deployment.terms import no_number, once
from protonorm.tensors import Tensors, decode, encode

MARK = b"PNFL"
SIZES = struct.Struct("<4sIQ")
LARGEST_HEADER = 2**16  # bytes of the JSON header
LARGEST_BODY = 2**32  # bytes of the tensors, if nobody knows better
LARGEST_INDEX = 2**22  # bytes of the part of safetensors that says what is where
MOST_TENSORS, MOST_AXES, LONGEST_NAME = 10_000, 8, 256
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class BadFrame(ValueError):
    """What arrived is no message; the sentence says why."""


def encode_body(tensors: Tensors) -> bytes:
    """Write tensors; none give no bytes."""
    return encode(tensors) if tensors else b""


def join(header: dict[str, Any], body: bytes) -> bytes:
    """Put a header before encoded tensors."""
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > LARGEST_HEADER:
        raise ValueError(f"A header of {len(text)} bytes is too long to be sent; {LARGEST_HEADER} at most are allowed.")
    return SIZES.pack(MARK, len(text), len(body)) + text + body


def split(content: bytes, largest: int = LARGEST_BODY) -> tuple[dict[str, Any], bytes]:
    """Take a frame apart into its header and the bytes of its tensors, which are not looked at yet."""
    if len(content) < SIZES.size:
        raise BadFrame(f"it has {len(content)} bytes, too few for a message")
    mark, header, body = SIZES.unpack_from(content)
    if mark != MARK:
        raise BadFrame("it does not begin as a message does")
    if header > LARGEST_HEADER:
        raise BadFrame(f"it has a header of {header} bytes; {LARGEST_HEADER} at most are allowed")
    if body > largest:
        raise BadFrame(f"it has {body} bytes of tensors; {largest} at most are expected")
    if len(content) != SIZES.size + header + body:
        raise BadFrame(f"it has {len(content)} bytes, and says that it has {SIZES.size + header + body}")
    found = _object(content[SIZES.size : SIZES.size + header], "header")
    return found, content[SIZES.size + header :]


def decode_body(body: bytes) -> Tensors:
    """Read tensors; what they claim to be is compared with what is there before any is made."""
    if not body:
        return {}
    _check_index(body)
    try:
        return decode(body)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise BadFrame(f"its tensors cannot be read ({shortened(str(error))})") from None


def _check_index(body: bytes) -> None:
    """Check that the tensors fill the body exactly, one after the other, each of a known type."""
    size = int.from_bytes(body[:8], "little")
    if len(body) < 8 or size > LARGEST_INDEX or 8 + size > len(body):
        raise BadFrame("its tensors have no index of a possible size")
    index = _object(body[8 : 8 + size].rstrip(b" "), "index of tensors")
    if not isinstance(index.pop("__metadata__", {}), dict):
        raise BadFrame("its tensors have metadata that are no object")
    if len(index) > MOST_TENSORS:
        raise BadFrame(f"it has {len(index)} tensors; {MOST_TENSORS} at most are allowed")
    spans = sorted(_span(name, one) for name, one in index.items())
    end = 0
    for first, last in spans:
        if first != end:
            raise BadFrame("its tensors overlap, or leave gaps")
        end = last
    if end != len(body) - 8 - size:
        raise BadFrame(f"its tensors take {end} bytes, and {len(body) - 8 - size} are there")


def _span(name: str, told: Any) -> tuple[int, int]:
    """Find where a tensor lies, if its type and shape need just that room."""
    if len(name) > LONGEST_NAME:
        raise BadFrame(f"it has a tensor whose name has {len(name)} characters")
    if not isinstance(told, dict) or told.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadFrame(f"its tensor {shortened(name)} is not described by type, shape and place")
    kind, shape, place = told["dtype"], told["shape"], told["data_offsets"]
    if not isinstance(kind, str) or kind not in BYTES:
        raise BadFrame(f"its tensor {shortened(name)} has the type {shortened(str(kind))}, which nobody expects")
    if not _whole(shape, MOST_AXES) or not _whole(place, 2) or len(place) != 2:
        raise BadFrame(f"its tensor {shortened(name)} has no possible shape and place")
    if place[1] - place[0] != prod(shape) * BYTES[kind]:
        raise BadFrame(f"its tensor {shortened(name)} has another size than its shape says")
    return place[0], place[1]


def _whole(value: Any, most: int) -> bool:
    """Tell whether it is a short list of whole numbers that a size can be."""
    return (
        isinstance(value, list) and len(value) <= most and all(type(one) is int and 0 <= one < 2**40 for one in value)
    )


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text.decode(), object_pairs_hook=once, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"its {what} cannot be read ({shortened(str(error))})") from None
    if not isinstance(found, dict):
        raise BadFrame(f"its {what} is no object")
    return found
