"""CIFAR-10 and CIFAR-100 from their binary and their Python archives.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report
from protonorm.data.prepared import Arrays
from protonorm.data.published.archives.members import tar_members
from protonorm.data.published.archives.pickled import read_pickle

SIDE = 32
PIXELS = 3 * SIDE * SIDE

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # red, green and blue planes in a row (n, 3072), labels (n,)


class Layout(NamedTuple):
    """Where things are in an archive."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    key: str = ""  # of the labels, in pickles
    names_key: str = ""
    before: int = 0  # bytes before a record's label


BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
BINARY10 = Layout("cifar-10-batches-bin", tuple(f"{one}.bin" for one in BATCHES), "test_batch.bin", "batches.meta.txt")
BINARY100 = Layout("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", before=1)
PYTHON10 = Layout("cifar-10-batches-py", BATCHES, "test_batch", "batches.meta", "labels", "label_names")
PYTHON100 = Layout("cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names")


def read_binary10(files: Mapping[str, Path]) -> Arrays:
    """Read cifar-10-binary.tar.gz."""
    return _read_binary(files, BINARY10)


def read_binary100(files: Mapping[str, Path]) -> Arrays:
    """Read cifar-100-binary.tar.gz."""
    return _read_binary(files, BINARY100)


def read_python10(files: Mapping[str, Path]) -> Arrays:
    """Read cifar-10-python.tar.gz."""
    return _read_python(files, PYTHON10)


def read_python100(files: Mapping[str, Path]) -> Arrays:
    """Read cifar-100-python.tar.gz."""
    return _read_python(files, PYTHON100)


def _read_binary(files: Mapping[str, Path], layout: Layout) -> Arrays:
    found = _read_members(files, layout)
    width = layout.before + 1 + PIXELS
    batches: list[Batch] = []
    for name in (*layout.train, layout.test):
        if len(found[name]) % width or not found[name]:
            raise ValueError(f"{name} is damaged: {len(found[name])} bytes are no records of {width} bytes.")
        records = np.frombuffer(found[name], np.uint8).reshape(-1, width)
        batches.append((records[:, layout.before + 1 :], records[:, layout.before].astype(np.int64)))
    return _join(batches, found[layout.names].decode("utf-8").split())


def _read_python(files: Mapping[str, Path], layout: Layout) -> Arrays:
    found = {name: read_pickle(content, name) for name, content in _read_members(files, layout).items()}
    batches = [_batch(found[name], name, layout) for name in (*layout.train, layout.test)]
    names = found[layout.names].get(layout.names_key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{layout.names} does not hold the names of the classes.")
    return _join(batches, names)


def _batch(held: dict[str, Any], name: str, layout: Layout) -> Batch:
    pixels, labels = held.get("data"), held.get(layout.key)
    numbers = np.array(labels if isinstance(labels, list) else [])
    if not isinstance(pixels, np.ndarray) or pixels.shape != (len(numbers), PIXELS) or numbers.dtype.kind != "i":
        raise ValueError(f"{name} does not hold pictures and their labels as the official archive does.")
    return pixels, numbers.astype(np.int64)


def _read_members(files: Mapping[str, Path], layout: Layout) -> dict[str, bytes]:
    """Read what the layout names from the one archive."""
    (path,) = files.values()
    names = (*layout.train, layout.test, layout.names)
    places = {f"{layout.folder}/{name}": name for name in names}
    found: dict[str, bytes] = {}
    for place, content in tar_members(path, places.__contains__):
        found[places[place]] = content
        report(f"Reading {path.name}", len(found), len(names))
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path} is not the official archive: it lacks {', '.join(missing)}.")
    return found


def _join(batches: Sequence[Batch], classes: Sequence[str]) -> Arrays:
    """Put the batches together, the test batch last; planes (3, 32, 32) become pixels (32, 32, 3)."""
    labels = np.concatenate([one for _, one in batches])
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(f"The labels go from {labels.min()} to {labels.max()}, but {len(classes)} classes are named.")
    planes = np.concatenate([one for one, _ in batches]).reshape(-1, 3, SIDE, SIDE)
    split = np.zeros(len(labels), np.int8)
    split[len(labels) - len(batches[-1][1]) :] = 1
    return Arrays(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels, split, tuple(classes))
