"""CSV files to vectors or tokens, through pandas. Nothing here needs torch."""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from protonorm.core.progress import report
from protonorm.core.registry import nearest
from protonorm.core.types import shortened, shown
from protonorm.data.access import CHUNK, reason, require_file, require_room
from protonorm.data.own.columns import ADVICE, ColumnOptions, Frame, encode_columns
from protonorm.data.own.labels import encode_labels
from protonorm.data.own.tokens import TokenOptions, tokenise
from protonorm.data.prepared import Arrays

Separator = Literal["comma", "semicolon", "tab"]

SEPARATORS: dict[str, str] = {"comma": ",", "semicolon": ";", "tab": "\t"}
LONGEST = 200  # characters of what is wrong with a file, in a sentence
# What counts as no value, as pandas has it; labels and texts may be any of these words.
NOTHING = (
    *("", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "None", "NULL", "null"),
    *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)


class TableOptions(NamedTuple):
    """Which columns of a table mean what."""

    label: str = "label"
    text: str | None = None  # the column to read as text, and the only one then
    drop: tuple[str, ...] = ()
    separator: Separator = "comma"
    columns: ColumnOptions = ColumnOptions()
    tokens: TokenOptions = TokenOptions()


def read_table(source: tuple[Path, TableOptions]) -> Arrays:
    """Read a CSV file, or say what is wrong with it."""
    path, options = source
    frame = read_frame(path, SEPARATORS[options.separator], [options.label, *([options.text] if options.text else [])])
    if options.label in frame:
        frame[options.label] = _among_numbers(frame[options.label])
    return frame_arrays(frame, options, str(path))


def frame_arrays(frame: Frame, options: TableOptions, where: str) -> Arrays:
    """Make vectors of all columns but the label's, or tokens of the one with texts."""
    _check_columns(frame, options, where)
    if not len(frame):
        raise ValueError(f"{where} has no rows.")
    column = frame[options.label]
    about = f"The column {shown(options.label)} of {where}"
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax()) + 1
        raise ValueError(f"{about} has no label in row {row}; every row needs one.")
    labels, classes = encode_labels(column.to_numpy(), about)
    split = np.zeros(len(labels), np.int8)
    if options.text is not None:
        tokens = tokenise(_texts(frame, options.text, where), options.tokens)
        return Arrays(tokens, labels, split, classes, vocabulary=options.tokens.vocabulary)
    rest = frame.drop(columns=[options.label, *options.drop])
    return Arrays(encode_columns(rest, options.columns, where), labels, split, classes)


def read_frame(path: Path, separator: str, words: Sequence[str] = ()) -> Frame:
    """Read a CSV file with pandas, and tell how far it is; whatever is wrong with it becomes a sentence.

    In the columns `words` nothing but the empty text is missing; in others also NA, None, null and the like.
    """
    pandas = import_pandas()
    size = require_file(path, "table").st_size
    require_room(2 * size, f"The table {path}", ADVICE)
    try:
        missing = {name: [""] if name in words else list(NOTHING) for name in _read_header(path, separator)}
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # rows that are longer than the first line
            text = io.TextIOWrapper(io.BufferedReader(Watched(file, path, size), CHUNK), "utf-8-sig", newline="")
            return pandas.read_csv(
                text,
                sep=separator,
                index_col=False,
                low_memory=False,
                skipinitialspace=True,
                keep_default_na=False,
                na_values=missing,
            )
    except pandas.errors.ParserWarning:
        raise ValueError(f"{path} cannot be read as a table: rows have more columns than the first line.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as a table: it is not UTF-8 text ({error.reason}).") from error
    except (ValueError, csv.Error) as error:  # pandas' own errors are among them
        why = shortened(" ".join(str(error).split()).removeprefix("Error tokenizing data. C error: "), LONGEST)
        raise ValueError(f"{path} cannot be read as a table: {why.rstrip('.')}.") from error


class Watched(io.RawIOBase):
    """A file that tells how far it has been read."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file, self._what, self._size, self._done = file, f"Reading {path.name}", size, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes, and tell of them."""
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        self._done += len(content)
        if content:
            report(self._what, self._done, self._size)
        return len(content)


def import_pandas() -> Any:
    """Import pandas, which is an extra."""
    if find_spec("pandas") is None:
        raise ValueError("Tables need pandas, which is not installed: pip install 'protonorm[frame]'.")
    return import_module("pandas")


def _among_numbers(labels: Frame) -> Frame:
    """Take NA, nan and the like for no label where all others are numbers; among words they are words."""
    gaps = labels.isin(NOTHING)
    if not gaps.any() or import_pandas().to_numeric(labels[~gaps], errors="coerce").isna().any():
        return labels
    return labels.mask(gaps)


def _read_header(path: Path, separator: str) -> list[str]:
    """Read the columns' names; refuse a missing one and one that comes twice, which pandas would change."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        found = next(csv.reader(file, delimiter=separator, skipinitialspace=True), [])
    names = [name.strip() for name in found]
    if not names:
        raise ValueError("it is empty; expected a first line with the names of the columns")
    if len(names) < 2:
        raise ValueError(
            f"its first line has one name only ({shown(names[0])}); dataset.separator says what stands between columns"
        )
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} has no name in the first line")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"the name {shown(twice[0])} is there twice in the first line")
    return found


def _check_columns(frame: Frame, options: TableOptions, where: str) -> None:
    """Refuse settings that name columns which are not there, or one column for two things."""
    known = [str(name) for name in frame.columns]
    given = {"label": (options.label,), "text": (options.text,) if options.text else (), "drop": options.drop}
    for setting, names in given.items():
        for name in names:
            if name not in known:
                raise ValueError(f"{where} has no column {shown(name)} for dataset.{setting}; {nearest(name, known)}")
    if options.label in (options.text, *options.drop) or (options.text and options.text in options.drop):
        raise ValueError("dataset.label, dataset.text and dataset.drop must name different columns.")


def _texts(frame: Frame, name: str, where: str) -> list[str]:
    column = frame[name]
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax()) + 1
        raise ValueError(f"The column {shown(name)} of {where} has no text in row {row}.")
    return [str(text) for text in column]
