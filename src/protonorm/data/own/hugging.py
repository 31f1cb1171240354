"""Data of Hugging Face `datasets`: objects, and folders that `save_to_disk` wrote. Nothing is downloaded.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report
from protonorm.core.registry import nearest
from protonorm.core.types import shortened, shown
from protonorm.data.access import reason, require_file
from protonorm.data.dataset import Dataset
from protonorm.data.mapped import short_hash
from protonorm.data.own.columns import ColumnOptions
from protonorm.data.own.folders import ImageOptions
from protonorm.data.own.hugging_pictures import stored_pictures
from protonorm.data.own.labels import encode_labels, named_labels, refuse_one_class
from protonorm.data.own.sequences import number_rows, padded, vectors
from protonorm.data.own.tables import TableOptions, frame_arrays
from protonorm.data.own.tokens import TokenOptions, tokenise
from protonorm.data.prepared import Arrays

MARKS = ("state.json", "dataset_dict.json")  # one of these is in a folder that was saved
ROWS = 1000  # that are read at once
LONGEST = 200  # characters of what is wrong with a folder, in a sentence

Saved = Any  # a datasets.Dataset or DatasetDict: the package is an extra


class HuggingOptions(NamedTuple):
    """Which columns mean what."""

    label: str = "label"
    input: str | None = None
    drop: tuple[str, ...] = ()
    pictures: ImageOptions = ImageOptions(None, None)
    columns: ColumnOptions = ColumnOptions()
    tokens: TokenOptions = TokenOptions()


def from_hugging_face(data: Saved, name: str = "datasets", options: HuggingOptions | None = None) -> Dataset:
    """Make a Dataset of an object of `datasets`: one part, or several that are put together."""
    arrays = arrays_of(data, options or HuggingOptions(), name)
    refuse_one_class(arrays.classes, name)
    return Dataset(name, arrays.images, arrays.labels, arrays.classes, vocabulary=arrays.vocabulary)


def read_saved(source: tuple[Path, HuggingOptions]) -> Arrays:
    """Read a folder that was saved, or say what is wrong with it."""
    path, options = source
    datasets = _import_datasets()
    try:
        with _without_bars(datasets):
            saved = datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder gives almost any
        why = shortened(" ".join(str(error).split()) or type(error).__name__, LONGEST)
        raise ValueError(f"{path} cannot be read as saved datasets: {why.rstrip('.')}.") from error
    return arrays_of(saved, options, str(path))


def folder_version(path: Path) -> str:
    """Condense the sizes and times of a saved folder's files, so that changed ones get another version."""
    if not path.is_dir() or not any((path / mark).exists() for mark in MARKS):
        raise ValueError(f"{path} is not a folder that save_to_disk of Hugging Face datasets wrote.")
    try:
        files = sorted(file for file in path.rglob("*") if not file.is_dir())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from None
    found = [(str(file.relative_to(path)), require_file(file)) for file in files]
    return short_hash(*((name, facts.st_size, facts.st_mtime_ns) for name, facts in found))


def arrays_of(data: Saved, options: HuggingOptions, where: str) -> Arrays:
    """Make pictures, vectors or tokens of an object of `datasets`."""
    datasets = _import_datasets()
    data = _joined(datasets, data, where)
    known = list(data.features)
    named = {"label": (options.label,), "input": (options.input,) if options.input else (), "drop": options.drop}
    for setting, names in named.items():
        for name in names:
            if name not in known:
                raise ValueError(f"{where} has no column {shown(name)} for dataset.{setting}; {nearest(name, known)}")
    if options.label in (options.input, *options.drop) or (options.input and options.input in options.drop):
        raise ValueError("dataset.label, dataset.input and dataset.drop must name different columns.")
    labels, classes = _labels(datasets, data, options.label, where)
    column = options.input or _pictures_column(datasets, data, options, where)
    split = np.zeros(len(labels), np.int8)
    if column is None:
        table = TableOptions(options.label, drop=options.drop, columns=options.columns)
        return frame_arrays(_plain_frame(datasets, data, options, where), table, where)._replace(
            labels=labels, classes=classes
        )
    about = f"The column {shown(column)} of {where}"
    if isinstance(data.features[column], datasets.Image):
        return Arrays(stored_pictures(datasets, data, column, options.pictures), labels, split, classes)
    values = _values(data, column)
    if isinstance(values[0], str):
        tokens = tokenise(_all_texts(values, about), options.tokens)
        return Arrays(tokens, labels, split, classes, vocabulary=options.tokens.vocabulary)
    rows = number_rows(values, about)
    if all(row.dtype.kind in "iu" for row in rows):
        tokens = padded(rows, options.tokens, about)
        return Arrays(tokens, labels, split, classes, vocabulary=int(tokens.max()) + 1)
    return Arrays(vectors(rows, options.columns, about), labels, split, classes)


def _joined(datasets: Any, data: Saved, where: str) -> Saved:
    """Put all parts together, as training and test files of other data sets are."""
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


def _pictures_column(datasets: Any, data: Saved, options: HuggingOptions, where: str) -> str | None:
    """Find the one column of pictures; None if there is none."""
    found = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    found = [name for name in found if name not in (options.label, *options.drop)]
    if len(found) > 1:
        raise ValueError(f"{where} has several columns of pictures ({', '.join(found)}); dataset.input names one.")
    return found[0] if found else None


def _plain_frame(datasets: Any, data: Saved, options: HuggingOptions, where: str) -> Any:
    """Give the columns of plain values as a table; refuse others, for which dataset.input is."""
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
    """Read a column, and tell how far it is."""
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
    """Write what an error of another library says, in one line."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, LONGEST).rstrip(".")


def _import_datasets() -> Any:
    if find_spec("datasets") is None:
        raise ValueError("dataset=hf:… needs Hugging Face datasets: pip install 'protonorm[hf]'.")
    return import_module("datasets")


@contextmanager
def _without_bars(datasets: Any) -> Iterator[None]:
    """Keep the library's own progress bars out of the terminal while this lasts."""
    shown_before = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown_before:
            datasets.enable_progress_bars()
