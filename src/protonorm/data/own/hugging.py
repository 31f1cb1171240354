"""Data of Hugging Face `datasets`: objects, and folders written by `save_to_disk`. Nothing is downloaded.

Nothing here needs torch.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report, steps
from protonorm.core.types import shortened, shown
from protonorm.data.access import reason, require_file
from protonorm.data.dataset import Dataset
from protonorm.data.mapped import short_hash
from protonorm.data.own.encoding import (
    Options,
    check_columns,
    encode_labels,
    named_labels,
    number_rows,
    padded,
    refuse_one_class,
    tokenise,
    vectors,
)
from protonorm.data.own.folders import common_form
from protonorm.data.own.tables import frame_arrays
from protonorm.data.pictures import read_header, read_picture
from protonorm.data.prepared import Arrays

MARKS = ("state.json", "dataset_dict.json")  # a saved folder has one of these
ROWS = 1000  # rows read at once
LONGEST = 200  # maximum length of another library's error text

Saved = Any  # a datasets.Dataset or DatasetDict: the package is an optional dependency
HEADERS = "Reading picture headers"


def from_hugging_face(data: Saved, name: str = "datasets", options: Options | None = None) -> Dataset:
    """Build a Dataset from an object of `datasets`: one part, or several that are merged."""
    arrays = arrays_of(data, options or Options(), name)
    refuse_one_class(arrays.classes, name)
    return Dataset(name, arrays.images, arrays.labels, arrays.classes, vocabulary=arrays.vocabulary)


def read_saved(path: Path, options: Options) -> Arrays:
    """Read a saved folder; raise a ValueError if it is invalid."""
    datasets = _import_datasets()
    try:
        with _without_bars(datasets):
            saved = datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder can raise almost any exception
        raise ValueError(f"{path} cannot be read as saved datasets: {first_words(error)}.") from error
    return arrays_of(saved, options, str(path))


def folder_version(path: Path) -> str:
    """Return a hash of the sizes and times of a saved folder's files, so that changed files have a new version."""
    if not path.is_dir() or not any((path / mark).exists() for mark in MARKS):
        raise ValueError(f"{path} is not a folder that save_to_disk of Hugging Face datasets wrote.")
    try:
        files = sorted(file for file in path.rglob("*") if not file.is_dir())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from None
    found = [(str(file.relative_to(path)), require_file(file)) for file in files]
    return short_hash(*((name, facts.st_size, facts.st_mtime_ns) for name, facts in found))


def arrays_of(data: Saved, options: Options, where: str) -> Arrays:
    """Build images, vectors or tokens from an object of `datasets`."""
    datasets = _import_datasets()
    data = _joined(datasets, data, where)
    check_columns(list(data.features), options, "input", where)
    labels, classes = _labels(datasets, data, options.label, where)
    column = options.input or _pictures_column(datasets, data, options, where)
    split = np.zeros(len(labels), np.int8)
    if column is None:
        return frame_arrays(_plain_frame(datasets, data, options, where), options, where)._replace(
            labels=labels, classes=classes
        )
    about = f"The column {shown(column)} of {where}"
    if isinstance(data.features[column], datasets.Image):
        return Arrays(stored_pictures(datasets, data, column, options), labels, split, classes)
    values = _values(data, column)
    if isinstance(values[0], str):
        tokens = tokenise(_all_texts(values, about), options)
        return Arrays(tokens, labels, split, classes, vocabulary=options.vocabulary)
    rows = number_rows(values, about)
    if all(row.dtype.kind in "iu" for row in rows):
        tokens = padded(rows, options, about)
        return Arrays(tokens, labels, split, classes, vocabulary=int(tokens.max()) + 1)
    return Arrays(vectors(rows, options, about), labels, split, classes)


def _joined(datasets: Any, data: Saved, where: str) -> Saved:
    """Concatenate all parts, as with training and test files of other datasets."""
    if isinstance(data, dict):
        try:
            data = datasets.concatenate_datasets(list(data.values()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"The parts of {where} do not fit together: {first_words(error)}.") from error
    if not isinstance(data, datasets.Dataset):
        raise ValueError(f"{where} is a {type(data).__name__}; expected a Dataset or DatasetDict of `datasets`.")
    if not len(data):
        raise ValueError(f"{where} has no rows.")
    return data.with_format(None)


def _labels(datasets: Any, data: Saved, name: str, where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    about = f"The column {shown(name)} of {where}"
    values = _values(data, name)
    if any(value is None for value in values):
        raise ValueError(f"{about} has no label in row {values.index(None) + 1}; every row needs one.")
    feature = data.features[name]
    if isinstance(feature, datasets.ClassLabel):
        return named_labels(np.array(values), np.array(feature.names), about)
    if isinstance(values[0], list | dict):
        raise ValueError(f"{about} holds a {type(values[0]).__name__} in each row; expected one label.")
    return encode_labels(np.array(values), about)


def _pictures_column(datasets: Any, data: Saved, options: Options, where: str) -> str | None:
    """Return the column of images, or None; raise a ValueError if there are several."""
    found = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    found = [name for name in found if name not in (options.label, *options.drop)]
    if len(found) > 1:
        raise ValueError(f"{where} has several columns of pictures ({', '.join(found)}); dataset.input names one.")
    return found[0] if found else None


def _plain_frame(datasets: Any, data: Saved, options: Options, where: str) -> Any:
    """Return the columns of plain values as a table; raise a ValueError for others, which need dataset.input."""
    for name, kind in data.features.items():
        if name in (options.label, *options.drop):
            continue
        about = f"The column {shown(name)} of {where}"
        if not isinstance(kind, datasets.Value | datasets.ClassLabel):
            word = "dict" if isinstance(kind, dict) else "list"
            raise ValueError(
                f"{about} holds a {word} in each row; dataset.input={name} learns from it, dataset.drop leaves it out."
            )
        if "binary" in kind.dtype:
            raise ValueError(f"{about} holds bytes, which mean nothing by themselves; dataset.drop leaves it out.")
    return data.to_pandas()


def _values(data: Saved, name: str) -> list[Any]:
    """Read a column, and report progress."""
    found: list[Any] = []
    column = data.select_columns([name])
    for start in range(0, len(column), ROWS):
        found += column[start : start + ROWS][name]
        report(f"Reading {shortened(name)}", len(found), len(column))
    return found


def _all_texts(values: list[Any], about: str) -> list[str]:
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(f"{about} has no text in row {row + 1}.")
    return values


def first_words(error: Exception) -> str:
    """Return another library's error text in one line."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, LONGEST).rstrip(".")


def _import_datasets() -> Any:
    if find_spec("datasets") is None:
        raise ValueError("dataset=hf:… needs Hugging Face datasets: pip install 'protonorm[hf]'.")
    return import_module("datasets")


@contextmanager
def _without_bars(datasets: Any) -> Iterator[None]:
    """Disable the library's own progress bars within the context."""
    shown_before = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown_before:
            datasets.enable_progress_bars()


def stored_pictures(datasets: Any, data: Any, column: str, options: Options) -> NDArray[np.uint8]:
    """Decode images to (N, H, W, C), one by one."""
    stored = data.cast_column(column, datasets.Image(decode=False))
    names = [Path(f"{column} of row {row + 1}") for row in range(len(stored))]
    headers = [
        read_header(*_stored_picture(stored, column, row, str(name))) for row, name in enumerate(steps(names, HEADERS))
    ]
    size, channels = common_form(names, headers, options)
    images = np.empty((len(names), *size, channels), np.uint8)
    for row, name in enumerate(steps(names, "Reading pictures")):
        images[row] = read_picture(*_stored_picture(stored, column, row, str(name)), size, channels)
    return images


def _stored_picture(stored: Any, column: str, row: int, name: str) -> tuple[Path | io.BytesIO, str]:
    """Return an image's bytes or its file, and its name."""
    held = stored[row][column] or {}
    if held.get("bytes"):
        return io.BytesIO(held["bytes"]), name
    if not held.get("path"):
        raise ValueError(f"There is no picture in {name}.")
    return Path(held["path"]), str(held["path"])
