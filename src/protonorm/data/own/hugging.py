"""Data of Hugging Face `datasets`: objects, and folders of `save_to_disk`. Nothing is downloaded or needs torch."""

import io
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report, steps
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.data.access import reason
from protonorm.data.dataset import Dataset
from protonorm.data.mapped import file_version, short_hash
from protonorm.data.own import encoding
from protonorm.data.own.encoding import Options
from protonorm.data.own.folders import common_form
from protonorm.data.own.tables import frame_arrays
from protonorm.data.pictures import read_header, read_picture
from protonorm.data.prepared import Arrays, check_labels

MARKS = ("state.json", "dataset_dict.json")  # a saved folder has one of these
ROWS = 1000  # rows read at once

Saved = Any  # a datasets.Dataset or DatasetDict: the package is an optional dependency


def from_hugging_face(data: Saved, name: str = "datasets", options: Options | None = None) -> Dataset:
    """Build a Dataset from an object of `datasets`: one part, or several that are merged."""
    arrays = arrays_of(data, options or Options(), name)
    encoding.refuse_one_class(arrays.classes, name)
    inputs, labels, _, classes, _, vocabulary, _, groups = arrays
    return Dataset(name, inputs, labels, classes, vocabulary=vocabulary, groups=groups)


def read_saved(path: Path, options: Options) -> Arrays:
    """Read a saved folder; raise a ValueError if it is invalid."""
    datasets = _import_datasets()
    enabled = not datasets.are_progress_bars_disabled()  # the library's own
    datasets.disable_progress_bars()
    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder can raise almost any exception
        raise ValueError(f"{path} cannot be read as saved datasets: {encoding.one_line(error)}.") from error
    finally:
        if enabled:
            datasets.enable_progress_bars()
    return arrays_of(saved, options, str(path))


def folder_version(path: Path) -> str:
    """Return a hash of the sizes and times of a saved folder's files, so that changed files have a new version."""
    if not path.is_dir() or not any((path / mark).exists() for mark in MARKS):
        raise ValueError(f"{path} is not a folder that save_to_disk of Hugging Face datasets wrote.")
    try:
        files = sorted(file for file in path.rglob("*") if not file.is_dir())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from None
    return short_hash(*((str(file.relative_to(path)), file_version(file)) for file in files))


def arrays_of(data: Saved, options: Options, where: str) -> Arrays:
    """Build images, vectors or tokens from an object of `datasets`."""
    datasets = _import_datasets()
    data = _joined(datasets, data, where)
    encoding.check_columns(list(data.features), options, "input", where)
    labels, classes = _labels(datasets, data, options.label, where)
    kinds = {
        name: kind for name, kind in data.features.items() if name not in (options.label, options.group, *options.drop)
    }
    pictures = [name for name, kind in kinds.items() if isinstance(kind, datasets.Image)]
    if len(pictures) > 1 and not options.input:
        raise ValueError(f"{where} has several columns of pictures ({', '.join(pictures)}); dataset.input names one.")
    column, split = options.input or next(iter(pictures), None), np.zeros(len(labels), np.int8)
    if column is None:
        for name, kind in kinds.items():
            where_column = f"The column {shown(name)} of {where}"
            if not isinstance(kind, datasets.Value | datasets.ClassLabel):
                raise ValueError(
                    f"{where_column} holds a {'dict' if isinstance(kind, dict) else 'list'} in each row; "
                    f"dataset.input={name} learns from it, dataset.drop leaves it out."
                )
            if "binary" in kind.dtype:
                raise ValueError(
                    f"{where_column} holds bytes, which mean nothing by themselves; dataset.drop leaves it out."
                )
        return frame_arrays(data.to_pandas(), options, where)._replace(labels=labels, classes=classes)
    groups = np.array(list(map(str, _values(data, options.group)))) if options.group else None
    if column in pictures:
        return Arrays(stored_pictures(datasets, data, column, options), labels, split, classes, groups=groups)
    where_column, values = f"The column {shown(column)} of {where}", _values(data, column)
    if isinstance(values[0], str):
        for row, value in enumerate(values, 1):
            if not isinstance(value, str):
                raise ValueError(f"{where_column} has no text in row {row}.")
        tokens = encoding.tokenise(values, options)
        return Arrays(tokens, labels, split, classes, vocabulary=options.vocabulary, groups=groups)
    rows = encoding.number_rows(values, where_column)
    if all(row.dtype.kind in "iu" for row in rows):
        tokens = encoding.padded(rows, options, where_column)
        return Arrays(tokens, labels, split, classes, vocabulary=int(tokens.max()) + 1, groups=groups)
    return Arrays(encoding.vectors(rows, options, where_column), labels, split, classes, groups=groups)


def _joined(datasets: Any, data: Saved, where: str) -> Saved:
    """Concatenate all parts, as with training and test files of other datasets."""
    if isinstance(data, dict):
        try:
            data = datasets.concatenate_datasets(list(data.values()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"The parts of {where} do not fit together: {encoding.one_line(error)}.") from error
    if not isinstance(data, datasets.Dataset):
        raise ValueError(f"{where} is a {type(data).__name__}; expected a Dataset or DatasetDict of `datasets`.")
    if not len(data):
        raise ValueError(f"{where} has no rows.")
    return data.with_format(None)


def _labels(datasets: Any, data: Saved, name: str, where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    about, values = f"The column {shown(name)} of {where}", _values(data, name)
    if None in values:
        raise ValueError(f"{about} has no label in row {values.index(None) + 1}; every row needs one.")
    if isinstance(feature := data.features[name], datasets.ClassLabel):
        try:
            return check_labels(np.array(values), np.array(feature.names), len(values))
        except ValueError as error:
            raise ValueError(f"{about} cannot be used: {error}.") from None
    if isinstance(values[0], list | dict):
        raise ValueError(f"{about} holds a {type(values[0]).__name__} in each row; expected one label.")
    return encoding.encode_labels(np.array(values), about)


def _values(data: Saved, name: str) -> list[Any]:
    """Read a column, and report progress."""
    values: list[Any] = []
    column = data.select_columns([name])
    for start in range(0, len(column), ROWS):
        values += column[start : start + ROWS][name]
        report(f"Reading {shortened(name)}", len(values), len(column))
    return values


def _import_datasets() -> Any:
    if find_spec("datasets") is None:
        raise ValueError("dataset=hf:… needs Hugging Face datasets: pip install '.[hf]' in a checkout.")
    return import_module("datasets")


def stored_pictures(datasets: Any, data: Any, column: str, options: Options) -> NDArray[np.uint8]:
    """Decode images to (N, H, W, C), one by one."""
    stored = data.cast_column(column, datasets.Image(decode=False))
    names = [Path(f"{column} of row {row + 1}") for row in range(len(stored))]

    def picture(row: int) -> tuple[Path | io.BytesIO, str]:
        """Return an image's bytes or its file, and its name."""
        content = stored[row][column] or {}
        if content.get("bytes"):
            return io.BytesIO(content["bytes"]), str(names[row])
        if not content.get("path"):
            raise ValueError(f"There is no picture in {names[row]}.")
        return Path(content["path"]), content["path"]

    rows = range(len(names))
    headers = [read_header(*picture(row)) for row in steps(rows, "Reading picture headers")]
    size, channels = common_form(names, headers, options)
    images = np.empty((len(names), *size, channels), np.uint8)
    for row in steps(rows, "Reading pictures"):
        images[row] = read_picture(*picture(row), size, channels)
    return images
