"""CIFAR-10 and CIFAR-100 from their binary and Python archives.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

A pickle is a program that calls functions by name. The official files use a few names, all of which serve to write
arrays of bytes. Here these names map to local stand-ins, and every other name is rejected. The result is checked to be
plain: a dict of numbers, text, lists of these, and arrays of bytes.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report
from protonorm.data.prepared import Arrays
from protonorm.data.published.prepare import tar_members

MOST_TUPLES = 1000  # the official files have about ten; hashing a million nested tuples would crash the process
ARRAY = object()  # stands for numpy.ndarray; can be neither called nor changed
SIDE = 32
PIXELS = 3 * SIDE * SIDE
Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # red, green and blue planes in a row (n, 3072), labels (n,)
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


class Refused(ValueError):
    """Error for a pickle that requests more than plain data."""


def read_pickle(content: bytes, name: str) -> dict[str, Any]:
    """Read a pickled dict of plain data; strings of Python 2 are decoded as Latin-1."""
    try:
        _check_operations(content)
        return _plain(PlainUnpickler(io.BytesIO(content), encoding="latin1").load())
    except Refused as error:
        raise ValueError(f"{name} is refused: {error}; nothing was executed.") from None
    except Exception as error:  # a damaged pickle can raise almost any exception
        raise ValueError(f"{name} is damaged: it is not a whole pickle of plain data ({error}).") from error


def _check_operations(content: bytes) -> None:
    """Raise a ValueError if a pickle needs far more memory than its own size, or has too many tuples."""
    tuples = 0
    for operation, argument, _ in pickletools.genops(content):  # also detects a truncated pickle
        if operation.name.endswith("PUT") and int(argument or 0) > len(content):  # allocates all lower numbers
            raise ValueError(f"it remembers a value under the number {argument}")
        tuples += "TUPLE" in operation.name
        if tuples > MOST_TUPLES:
            raise ValueError(f"it has more than {MOST_TUPLES} tuples")


class StandIn:
    """Stand-in for a name that a pickle may use: a local function that it can call but not change."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        """Call the local function."""
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise Refused("it asks to change what a name stands for")


class ByteType:
    """Stand-in for numpy's type of bytes."""

    __slots__ = ()

    def __init__(self, name: Any, *_: Any) -> None:
        if type(name) is not str or name not in ("u1", "|u1", "uint8"):
            raise ValueError("an array does not hold bytes")

    def __setstate__(self, state: Any) -> None:
        """Ignore the details, which are the same for all types of bytes."""


class ByteArray:
    """Stand-in for numpy's array of bytes, without values until it is filled."""

    __slots__ = ("values",)

    def __init__(self, kind: Any, *_: Any) -> None:
        if kind is not ARRAY:
            raise Refused("it asks for an object that is no array")
        self.values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        """Fill the array from (version, shape, type, whether columns come first, bytes)."""
        _, shape, kind, columns, content = state
        if type(kind) is not ByteType:
            raise ValueError("an array has no type")
        raw = content.encode("latin1") if type(content) is str else bytes(memoryview(content))
        size = tuple(int(side) for side in shape)
        if min(size, default=-1) < 0 or math.prod(size) != len(raw):
            raise ValueError(f"an array of {len(raw)} bytes has another shape")
        self.values = np.frombuffer(raw, np.uint8).reshape(size, order="F" if columns else "C")


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any, *_: Any) -> ByteArray:
    array = ByteArray(ARRAY)
    array.__setstate__((1, shape, kind, order == "F", content))
    return array


ALLOWED: dict[tuple[str, str], object] = {
    ("_codecs", "encode"): StandIn(
        lambda text, *_: str.encode(text, "latin1")
    ),  # how Python 3 writes bytes for Python 2
    ("numpy", "ndarray"): ARRAY,
    ("numpy", "dtype"): StandIn(ByteType),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): StandIn(ByteArray) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): StandIn(_from_buffer) for core in ("core", "_core")},
}


class PlainUnpickler(pickle.Unpickler):
    """Unpickler that accepts the names in ALLOWED, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name; raise Refused for every other name."""
        if (module, name) not in ALLOWED:
            raise Refused(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def _plain(content: Any) -> dict[str, Any]:
    """Return a dict after checking that it holds only numbers, text, arrays, and lists of numbers and text."""
    if type(content) is not dict:
        raise ValueError(f"it holds a {type(content).__name__} where a dict was expected")
    result = {_item(key): _value(value) for key, value in content.items()}
    if not all(isinstance(key, str) for key in result):
        raise ValueError("a key is no text")
    return result


def _value(value: Any) -> Any:
    if type(value) is ByteArray:
        return value.values
    return [_item(item) for item in value] if type(value) is list else _item(value)


def _item(value: Any) -> Any:
    if type(value) is bytes:
        return value.decode("latin1")
    if type(value) not in (type(None), bool, int, float, str):
        raise ValueError(f"it holds a {type(value).__name__} where a number or text was expected")
    return value


class Layout(NamedTuple):
    """Names of files and keys in an archive."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    key: str = ""  # of the labels, in pickles
    names_key: str = ""
    before: int = 0  # bytes before a record's label


def _read_binary(files: Mapping[str, Path], layout: Layout) -> Arrays:
    members = _read_members(files, layout)
    width = layout.before + 1 + PIXELS
    batches: list[Batch] = []
    for name in (*layout.train, layout.test):
        if len(members[name]) % width or not members[name]:
            raise ValueError(f"{name} is damaged: {len(members[name])} bytes are no records of {width} bytes.")
        records = np.frombuffer(members[name], np.uint8).reshape(-1, width)
        batches.append((records[:, layout.before + 1 :], records[:, layout.before].astype(np.int64)))
    return _join(batches, members[layout.names].decode("utf-8").split())


def _read_python(files: Mapping[str, Path], layout: Layout) -> Arrays:
    members = {name: read_pickle(content, name) for name, content in _read_members(files, layout).items()}
    batches: list[Batch] = []
    for name in (*layout.train, layout.test):
        pixels, labels = members[name].get("data"), members[name].get(layout.key)
        numbers = np.array(labels if isinstance(labels, list) else [])
        if not isinstance(pixels, np.ndarray) or pixels.shape != (len(numbers), PIXELS) or numbers.dtype.kind != "i":
            raise ValueError(f"{name} does not hold pictures and their labels as the official archive does.")
        batches.append((pixels, numbers.astype(np.int64)))
    names = members[layout.names].get(layout.names_key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{layout.names} does not hold the names of the classes.")
    return _join(batches, names)


def _read_members(files: Mapping[str, Path], layout: Layout) -> dict[str, bytes]:
    """Read the members that the layout names from the archive."""
    (path,) = files.values()
    names = {f"{layout.folder}/{name}": name for name in (*layout.train, layout.test, layout.names)}
    members: dict[str, bytes] = {}
    for place, content in tar_members(path, names.__contains__):
        members[names[place]] = content
        report(f"Reading {path.name}", len(members), len(names))
    if missing := [name for name in names.values() if name not in members]:
        raise ValueError(f"{path} is not the official archive: it lacks {', '.join(missing)}.")
    return members


def _join(batches: Sequence[Batch], classes: Sequence[str]) -> Arrays:
    """Concatenate the batches, the test batch last; planes (3, 32, 32) become pixels (32, 32, 3)."""
    labels = np.concatenate([labels for _, labels in batches])
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(f"The labels go from {labels.min()} to {labels.max()}, but {len(classes)} classes are named.")
    planes = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, SIDE, SIDE)
    split = np.zeros(len(labels), np.int8)
    split[len(labels) - len(batches[-1][1]) :] = 1
    return Arrays(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels, split, tuple(classes))


BINARY10 = Layout(
    "cifar-10-batches-bin", tuple(f"{name}.bin" for name in BATCHES), "test_batch.bin", "batches.meta.txt"
)
BINARY100 = Layout("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", before=1)
PYTHON10 = Layout("cifar-10-batches-py", BATCHES, "test_batch", "batches.meta", "labels", "label_names")
PYTHON100 = Layout("cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names")

read_binary10 = partial(_read_binary, layout=BINARY10)  # cifar-10-binary.tar.gz, and so on
read_binary100 = partial(_read_binary, layout=BINARY100)
read_python10 = partial(_read_python, layout=PYTHON10)
read_python100 = partial(_read_python, layout=PYTHON100)
