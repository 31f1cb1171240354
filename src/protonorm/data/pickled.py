"""Pickles read as plain data: nothing that they name is ever called.

A pickle is a program that calls functions by name. The official CIFAR files and the partitions of PFLlib and HtFLlib
use a few names, all of which serve to write arrays. Here calls of these names are recorded and never made, and every
other name is rejected. What the calls stand for is built afterwards, and checked to be plain.
"""

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBERS = re.compile(r"([<>|]?)(f[248]|[iu][1248]|b1)|uint8")  # names of types of numbers
MAX_TUPLES = 1000  # the official files have about ten; hashing a million nested tuples would crash the process
ALLOWED = (
    ("_codecs", "encode"),  # how Python 3 writes bytes for Python 2
    *(("numpy", "ndarray"), ("numpy", "dtype")),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
)


class Refused(ValueError):
    """Error for a pickle that requests more than plain data."""


def read_pickle(content: bytes, name: str) -> dict[str, Any]:
    """Read a pickled dict of plain data; strings of Python 2 are decoded as Latin-1."""
    return _read(content, name, _plain)


def read_pickled_object(content: bytes, name: str) -> dict[str, Any]:
    """Read a pickled array () of a dict, whose values are arrays of numbers, or rows of numbers and lists."""
    return _read(content, name, _single)


def _read(content: bytes, name: str, build: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    try:
        _check_operations(content)
        return build(PlainUnpickler(io.BytesIO(content), encoding="latin1").load())
    except Refused as error:
        raise ValueError(f"{name} must hold plain data only, but {error}; nothing was executed.") from None
    except Exception as error:  # a damaged pickle can raise almost any exception
        raise ValueError(f"{name} is damaged: it is not a whole pickle of plain data ({error}).") from error


def _check_operations(content: bytes) -> None:
    """Raise a ValueError if a pickle needs far more memory than its own size, or has too many tuples."""
    tuples = 0
    for operation, argument, _ in pickletools.genops(content):  # also detects a truncated pickle
        if operation.name.endswith("PUT") and int(argument or 0) > len(content):  # allocates all lower numbers
            raise ValueError(f"it remembers a value under the number {argument}")
        tuples += "TUPLE" in operation.name
        if tuples > MAX_TUPLES:
            raise ValueError(f"it has more than {MAX_TUPLES} tuples")


class Stub:
    """Stand-in for a function that a pickle names, or for the result of a call, which is recorded and never made."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name, self.arguments = name, arguments

    def __call__(self, *arguments: Any) -> "Stub":
        """Record a call."""
        return Stub(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class PlainUnpickler(pickle.Unpickler):
    """Unpickler that accepts the names in ALLOWED, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for an allowed name; raise Refused for every other one."""
        if (module, name) not in ALLOWED:
            raise Refused(f"it asks for {module}.{name}")
        return Stub(name)


def _plain(content: Any) -> dict[str, Any]:
    """Return a dict after checking that it holds only numbers, text, arrays, and lists of numbers and text."""
    if type(content) is not dict:
        raise ValueError(f"it holds a {type(content).__name__} where a dict was expected")
    result = {_item(key): _value(value) for key, value in content.items()}
    if not all(isinstance(key, str) for key in result):
        raise ValueError("a key is no text")
    return result


def _single(content: Any) -> dict[str, Any]:
    """Return the dict in an array () of objects."""
    (held,) = _objects(content, ())
    if type(held) is not dict:
        raise ValueError(f"it holds a {type(held).__name__} where a dict was expected")
    return {str(_item(key)): _array_or_rows(value) for key, value in held.items()}


def _array_or_rows(value: Any) -> Any:
    """Return an array of numbers; of an array (n, m) of objects its rows, lists of numbers and lists of numbers."""
    if not _is_call(value, "_reconstruct") or value.state[2].arguments[0] not in ("O8", "O", "|O"):
        return _reconstructed(value)
    count, width = (int(side) for side in value.state[1])
    items = [_value(item) for item in _objects(value, (count, width))]
    return [items[start : start + width] for start in range(0, len(items), width)] if width else []


def _objects(value: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return the objects of an array of this shape."""
    if not _is_call(value, "_reconstruct") or not _is_call(value.state[2], "dtype"):
        raise ValueError("it holds no array of objects")
    _, sides, kind, columns_first, held = value.state
    if kind.arguments[0] not in ("O8", "O", "|O") or tuple(sides) != shape or type(held) is not list:
        raise ValueError(f"an array of objects of shape {shape} was expected")
    if len(held) != math.prod(shape) or (columns_first and len(shape) > 1):
        raise ValueError(f"an array of {len(held)} objects has another shape")
    return held


def _value(value: Any) -> Any:
    if type(value) is Stub and value.name in ("_frombuffer", "_reconstruct"):
        array = _reconstructed(value)
        if array.dtype != np.uint8:
            raise ValueError("an array does not hold bytes")
        return array
    return [_item(item) for item in value] if type(value) is list else _item(value)


def _reconstructed(value: Any) -> NDArray[Any]:
    if _is_call(value, "_frombuffer"):
        content, kind, shape, order, *_ = value.arguments
        return _array(content, kind, shape, order == "F")
    if not _is_call(value, "_reconstruct"):
        raise ValueError("something else is where an array was expected")
    if not _is_call(value.arguments[0], "ndarray"):
        raise Refused("it asks for an object that is no array")
    _, shape, kind, columns_first, content = value.state
    return _array(content, kind, shape, columns_first)


def _is_call(value: Any, name: str) -> bool:
    return type(value) is Stub and value.name == name


def _array(content: Any, kind: Any, shape: Any, columns_first: Any) -> NDArray[Any]:
    """Build an array of numbers; raise a ValueError if their bytes do not match the shape."""
    dtype = _dtype(kind)
    text = _item(content) if type(content) is Stub else content
    raw = text.encode("latin1") if type(text) is str else bytes(memoryview(text))
    size = tuple(int(side) for side in shape)
    if min(size, default=0) < 0 or math.prod(size) * dtype.itemsize != len(raw):
        raise ValueError(f"an array of {len(raw)} bytes has another shape")
    return np.frombuffer(raw, dtype).reshape(size, order="F" if columns_first else "C")


def _dtype(kind: Any) -> np.dtype[Any]:
    """Return the type of numbers that a recorded call of `dtype` means, in the byte order of its state."""
    code = kind.arguments[0] if _is_call(kind, "dtype") else None
    if type(code) is not str or not (match := NUMBERS.fullmatch(code)):
        raise ValueError("an array holds something else than numbers")
    _, order, *rest = getattr(kind, "state", None) or (3, "|", None, None, None)
    if order not in ("<", ">", "|") or any(item is not None for item in rest[:3]):
        raise ValueError("the type of an array is not that of plain numbers")
    return np.dtype(f"{match[1] or order}{match[2]}" if match[2] else "u1")


def _item(value: Any) -> Any:
    if _is_call(value, "encode"):
        value = str.encode(value.arguments[0], "latin1")
    if type(value) is bytes:
        return value.decode("latin1")
    if type(value) not in (type(None), bool, int, float, str):
        raise ValueError(f"it holds a {type(value).__name__} where a number or text was expected")
    return value
