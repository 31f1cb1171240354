"""CIFAR-10 and CIFAR-100 from their binary and their Python archives.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.data.official.members import tar_members
from protonorm.data.official.pickled import read_pickle
from protonorm.data.prepared import Arrays, Tell

SIDE = 32
PIXELS = 3 * SIDE * SIDE


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


def read_binary10(files: Mapping[str, Path], tell: Tell) -> Arrays:
    """Read cifar-10-binary.tar.gz."""
    return _read_binary(files, BINARY10, tell)


def read_binary100(files: Mapping[str, Path], tell: Tell) -> Arrays:
    """Read cifar-100-binary.tar.gz."""
    return _read_binary(files, BINARY100, tell)


def read_python10(files: Mapping[str, Path], tell: Tell) -> Arrays:
    """Read cifar-10-python.tar.gz."""
    return _read_python(files, PYTHON10, tell)


def read_python100(files: Mapping[str, Path], tell: Tell) -> Arrays:
    """Read cifar-100-python.tar.gz."""
    return _read_python(files, PYTHON100, tell)


def _read_binary(files: Mapping[str, Path], layout: Layout, tell: Tell) -> Arrays:
    found = _contents(files, layout, tell)
    width = layout.before + 1 + PIXELS
    parts = []
    for name in (*layout.train, layout.test):
        if len(found[name]) % width or not found[name]:
            raise ValueError(f"{name} is damaged: {len(found[name])} bytes are no records of {width} bytes.")
        records = np.frombuffer(found[name], np.uint8).reshape(-1, width)
        parts.append((records[:, layout.before + 1 :], records[:, layout.before]))
    return _joined(parts, found[layout.names].decode("utf-8").split())


def _read_python(files: Mapping[str, Path], layout: Layout, tell: Tell) -> Arrays:
    found = {name: read_pickle(content, name) for name, content in _contents(files, layout, tell).items()}
    parts = [_batch(found[name], name, layout) for name in (*layout.train, layout.test)]
    names = found[layout.names]
    if not isinstance(names, dict) or not isinstance(names.get(layout.names_key), list):
        raise ValueError(f"{layout.names} does not hold the names of the classes.")
    return _joined(parts, names[layout.names_key])


def _batch(held: Any, name: str, layout: Layout) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    pixels, labels = (held.get(key) if isinstance(held, dict) else None for key in ("data", layout.key))
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list) or pixels.shape != (len(labels), PIXELS):
        raise ValueError(f"{name} does not hold pictures and their labels as the official archive does.")
    return pixels, np.array(labels, np.uint8)


def _contents(files: Mapping[str, Path], layout: Layout, tell: Tell) -> dict[str, bytes]:
    """Read what the layout names from the one archive."""
    (path,) = files.values()
    names = (*layout.train, layout.test, layout.names)
    places = {f"{layout.folder}/{name}": name for name in names}
    found: dict[str, bytes] = {}
    for place, content in tar_members(path, places.__contains__):
        found[places[place]] = content
        tell(f"reading {path.name}", len(found), len(names))
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path} is not the official archive: it lacks {', '.join(missing)}.")
    return found


def _joined(parts: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]], classes: Sequence[str]) -> Arrays:
    """Put the parts together, the test part last; planes (3, 32, 32) become pixels (32, 32, 3)."""
    labels = np.concatenate([one for _, one in parts]).astype(np.int64)
    if labels.max() >= len(classes):
        raise ValueError(f"A label is {labels.max()}, but {len(classes)} classes are named.")
    planes = np.concatenate([one for one, _ in parts]).reshape(-1, 3, SIDE, SIDE)
    split = np.zeros(len(labels), np.int8)
    split[len(labels) - len(parts[-1][1]) :] = 1
    return Arrays(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels, split, tuple(classes))
