"""Frames, the binary format of all messages: a fixed prefix, a JSON header, and tensors as safetensors; never code.

    4 bytes   PNFL
    4 bytes   length of the header, little-endian
    8 bytes   length of the tensors, little-endian
    header    JSON, UTF-8: an object
    tensors   safetensors without metadata; empty if there are none

`split` and `decode_body` accept bytes from untrusted senders: they return a header and tensors or raise BadFrame, and
use at most a few times the memory of the received bytes. `read_frame` and `unpack` read frames between processes of
the same run, whose headers may be longer and may contain non-finite numbers.
"""

import json
import struct
from io import BytesIO
from math import prod
from typing import IO, Any

from safetensors import SafetensorError

from protonorm.core.text import shortened
from protonorm.tensors import Tensors, decode, encode

MARK = b"PNFL"
SIZES = struct.Struct("<4sIQ")
MAX_HEADER = 2**16  # bytes of the JSON header
MAX_BODY = 2**32  # bytes of the tensors, unless the caller sets another limit
MAX_INDEX = 2**22  # bytes of the safetensors index
MAX_TENSORS, MAX_AXES, MAX_NAME_LENGTH = 10_000, 8, 256
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
MAX_OWN_HEADER, MAX_OWN_BODY = 2**26, 2**36  # between processes of the same run
CHUNK = 2**20  # bytes per read: memory grows with the received bytes, not with the announced size
UNREADABLE = (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError)  # exceptions of `decode`


class BadFrame(ValueError):
    """Error raised for bytes that are not a valid frame; its message states the reason."""


def encode_body(tensors: Tensors | None) -> bytes:
    """Encode tensors as safetensors; no tensors give no bytes."""
    return encode(tensors) if tensors else b""


def join(header: dict[str, Any], body: bytes) -> bytes:
    """Build a frame from a header and encoded tensors."""
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER:
        raise ValueError(f"A header of {len(text)} bytes is too long to be sent; {MAX_HEADER} at most are allowed.")
    return SIZES.pack(MARK, len(text), len(body)) + text + body


def split(content: bytes, largest: int = MAX_BODY) -> tuple[dict[str, Any], bytes]:
    """Split a frame into its header and the bytes of its tensors, which are not decoded."""
    if len(content) < SIZES.size:
        raise BadFrame(f"it has {len(content)} bytes, too few for a message")
    mark, header, body = SIZES.unpack_from(content)
    if mark != MARK:
        raise BadFrame("it does not begin as a message does")
    if header > MAX_HEADER:
        raise BadFrame(f"it has a header of {header} bytes; {MAX_HEADER} at most are allowed")
    if body > largest:
        raise BadFrame(f"it has {body} bytes of tensors; {largest} at most are expected")
    if len(content) != SIZES.size + header + body:
        raise BadFrame(f"it has {len(content)} bytes, and says that it has {SIZES.size + header + body}")
    return _object(content[SIZES.size : SIZES.size + header], "header"), content[SIZES.size + header :]


def decode_body(body: bytes) -> Tensors:
    """Decode tensors; their declared sizes are checked against the available bytes before any allocation."""
    if not body:
        return {}
    _check_index(body)
    try:
        return decode(body)
    except UNREADABLE as error:
        raise BadFrame(f"its tensors cannot be read ({shortened(str(error))})") from None


def write_frame(stream: IO[bytes], header: dict[str, Any], tensors: Tensors | None = None) -> None:
    """Write a frame to a process of the same run."""
    stream.writelines(_parts(header, tensors))
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], Tensors] | None:
    """Read header and tensors of a frame from a process of the same run; None if the stream has ended."""
    start = stream.read(SIZES.size)
    if len(start) < SIZES.size:
        return None
    mark, header_size, body_size = SIZES.unpack(start)
    if mark != MARK:
        raise BadFrame("it does not begin as a frame does")
    if header_size > MAX_OWN_HEADER or body_size > MAX_OWN_BODY:
        raise BadFrame(f"a frame of {header_size} and {body_size} bytes was announced")
    text, body = _read(stream, header_size), _read(stream, body_size)
    if len(text) < header_size or len(body) < body_size:
        return None
    try:
        header, tensors = json.loads(text), decode(body) if body else {}
    except (RecursionError, *UNREADABLE) as error:
        raise BadFrame(f"a frame could not be read ({error})") from error
    if not isinstance(header, dict):
        raise BadFrame("a frame has no header")
    return header, tensors


def pack(header: dict[str, Any], tensors: Tensors | None = None, file: bytes = b"") -> bytes:
    """Build a frame for a process of the same run, followed by the raw bytes of a file."""
    return b"".join([*_parts(header, tensors), file])


def unpack(content: bytes) -> tuple[dict[str, Any], Tensors, bytes]:
    """Parse the output of `pack` into header, tensors and file."""
    stream = BytesIO(content)
    frame = read_frame(stream)
    if frame is None:
        raise BadFrame("a frame ends too soon")
    return *frame, stream.read()


def strict_json(content: bytes | str) -> Any:
    """Parse JSON; raise ValueError for duplicate names in an object and for non-finite numbers."""
    return json.loads(content, object_pairs_hook=_once, parse_constant=_no_number)


def _check_index(body: bytes) -> None:
    """Check that the tensors have known types and fill the body without gaps or overlaps."""
    size = int.from_bytes(body[:8], "little")
    if len(body) < 8 or size > MAX_INDEX or 8 + size > len(body):
        raise BadFrame("its tensors have no index of a possible size")
    index = _object(body[8 : 8 + size].rstrip(b" "), "index of tensors")
    if not isinstance(index.pop("__metadata__", {}), dict):
        raise BadFrame("its tensors have metadata that are no object")
    if len(index) > MAX_TENSORS:
        raise BadFrame(f"it has {len(index)} tensors; {MAX_TENSORS} at most are allowed")
    end = 0
    for start, stop in sorted(_span(name, entry) for name, entry in index.items()):
        if start != end:
            raise BadFrame("its tensors overlap, or leave gaps")
        end = stop
    if end != len(body) - 8 - size:
        raise BadFrame(f"its tensors take {end} bytes, and {len(body) - 8 - size} are there")


def _span(name: str, entry: Any) -> tuple[int, int]:
    """Return the first and last offset of a tensor; raise BadFrame if they do not match its type and shape."""
    if len(name) > MAX_NAME_LENGTH:
        raise BadFrame(f"it has a tensor whose name has {len(name)} characters")
    name = shortened(name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadFrame(f"its tensor {name} is not described by type, shape and place")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in BYTES:
        raise BadFrame(f"its tensor {name} has the type {shortened(str(kind))}, which is not expected")
    if not _are_sizes(shape, MAX_AXES) or not _are_sizes(offsets, 2) or len(offsets) != 2:
        raise BadFrame(f"its tensor {name} has no possible shape and place")
    if offsets[1] - offsets[0] != prod(shape) * BYTES[kind]:
        raise BadFrame(f"its tensor {name} has another size than its shape says")
    return offsets[0], offsets[1]


def _are_sizes(value: Any, most: int) -> bool:
    """Return whether a value is a list of at most `most` integers that are valid sizes."""
    return isinstance(value, list) and len(value) <= most and all(type(n) is int and 0 <= n < 2**40 for n in value)


def _object(text: bytes, name: str) -> dict[str, Any]:
    try:
        value = strict_json(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"its {name} cannot be read ({shortened(str(error))})") from None
    if not isinstance(value, dict):
        raise BadFrame(f"its {name} is no object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return members


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")  # NaN and Infinity are not valid JSON


def _parts(header: dict[str, Any], tensors: Tensors | None) -> tuple[bytes, bytes]:
    text, body = json.dumps(header).encode(), encode_body(tensors)
    return SIZES.pack(MARK, len(text), len(body)) + text, body


def _read(stream: IO[bytes], size: int) -> bytes:
    """Read `size` bytes, or fewer if the stream ends."""
    parts = bytearray()
    while len(parts) < size and (part := stream.read(min(CHUNK, size - len(parts)))):
        parts += part
    return bytes(parts)
