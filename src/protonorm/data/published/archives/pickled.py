"""Read CIFAR's pickles without letting them run anything.

A pickle is a program that calls functions by name. The official files name a few, all of which serve to write arrays of
bytes. Here these names stand for functions of our own, and every other name is refused. What comes out is checked
to be plain: a dict of numbers, text, lists of these, and arrays of bytes.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_TUPLES = 1000  # the official files have about ten; hashing a million, one inside the other, would end the process


class Refused(ValueError):
    """A pickle asks for more than plain data."""


def read_pickle(content: bytes, name: str) -> dict[str, Any]:
    """Read a pickled dict of plain data; text of Python 2 becomes text, whatever letters it had."""
    try:
        _check_operations(content)
        return _plain(PlainUnpickler(io.BytesIO(content), encoding="latin1").load())
    except Refused as error:
        raise ValueError(f"{name} is refused: {error}; nothing was executed.") from None
    except Exception as error:  # a damaged pickle gives almost any
        raise ValueError(f"{name} is damaged: it is not a whole pickle of plain data ({error}).") from error


def _check_operations(content: bytes) -> None:
    """Refuse a pickle that would take far more memory than its own size, or nest tuples without end."""
    tuples = 0
    for operation, argument, _ in pickletools.genops(content):  # notices a pickle that ends early, too
        if operation.name.endswith("PUT") and int(argument or 0) > len(content):  # room is made for all numbers below
            raise ValueError(f"it remembers a value under the number {argument}")
        tuples += "TUPLE" in operation.name
        if tuples > MOST_TUPLES:
            raise ValueError(f"it has more than {MOST_TUPLES} tuples")


class StandIn:
    """What a pickle gets for a name that it may use: a function of ours, which it can call but not change."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        """Call our function."""
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise Refused("it asks to change what a name stands for")


class ByteType:
    """Stand in for numpy's type of bytes."""

    __slots__ = ()

    def __init__(self, name: Any, *_: Any) -> None:
        if type(name) is not str or name not in ("u1", "|u1", "uint8"):
            raise ValueError("an array does not hold bytes")

    def __setstate__(self, state: Any) -> None:
        """Ignore the details, which are the same for all types of bytes."""


class ByteArray:
    """Stand in for numpy's array of bytes, until it is filled."""

    __slots__ = ("values",)

    def __init__(self, kind: Any, *_: Any) -> None:
        if kind is not ARRAY:
            raise Refused("it asks for an object that is no array")
        self.values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        """Fill the array: (version, shape, type, whether columns come first, bytes)."""
        _, shape, kind, columns, content = state
        self.fill(content, kind, shape, "F" if columns else "C")

    @classmethod
    def from_buffer(cls, content: Any, kind: Any, shape: Any, order: Any, *_: Any) -> ByteArray:
        """Make an array and fill it."""
        made = cls(ARRAY)
        made.fill(content, kind, shape, order)
        return made

    def fill(self, content: Any, kind: Any, shape: Any, order: Any) -> None:
        """Take the bytes, if they are as many as the shape says."""
        if type(kind) is not ByteType:
            raise ValueError("an array has no type")
        raw = content.encode("latin1") if type(content) is str else bytes(memoryview(content))
        size = tuple(int(side) for side in shape)
        if min(size, default=-1) < 0 or math.prod(size) != len(raw):
            raise ValueError(f"an array of {len(raw)} bytes has another shape")
        self.values = np.frombuffer(raw, np.uint8).reshape(size, order="F" if order == "F" else "C")


def _encode(text: str, *_: Any) -> bytes:
    return str.encode(text, "latin1")


ARRAY = object()  # the class itself can neither be called nor changed
ALLOWED: dict[tuple[str, str], object] = {
    ("_codecs", "encode"): StandIn(_encode),  # how Python 3 writes bytes for Python 2
    ("numpy", "ndarray"): ARRAY,
    ("numpy", "dtype"): StandIn(ByteType),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): StandIn(ByteArray) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): StandIn(ByteArray.from_buffer) for core in ("core", "_core")},
}


class PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows the names in ALLOWED, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """Give what stands for a name; refuse every other name."""
        if (module, name) not in ALLOWED:
            raise Refused(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def _plain(held: Any) -> dict[str, Any]:
    """Check that a dict holds nothing but numbers, text, arrays, and lists of numbers and text."""
    if type(held) is not dict:
        raise ValueError(f"it holds a {type(held).__name__} where a dict was expected")
    found = {_item(key): _value(value) for key, value in held.items()}
    if not all(isinstance(key, str) for key in found):
        raise ValueError("a key is no text")
    return found


def _value(value: Any) -> Any:
    if type(value) is ByteArray:
        return value.values
    return [_item(one) for one in value] if type(value) is list else _item(value)


def _item(value: Any) -> Any:
    if type(value) is bytes:
        return value.decode("latin1")
    if type(value) not in (type(None), bool, int, float, str):
        raise ValueError(f"it holds a {type(value).__name__} where a number or text was expected")
    return value
