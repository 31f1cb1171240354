"""CSV files, read with pandas, and .npz files as vectors or tokens. Nothing here needs torch."""

import csv
import io
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report
from protonorm.core.types import shown
from protonorm.data.access import CHUNK, reason, require_file, require_room
from protonorm.data.dataset import Inputs, channels_first, sample_keys
from protonorm.data.own import encoding
from protonorm.data.own.encoding import ADVICE, Frame, Options
from protonorm.data.prepared import Arrays, NpzReader, check_labels, open_npz

FEATURES = ("inputs", "features")  # accepted names of the array of vectors
SEPARATORS: dict[str, str] = {"comma": ",", "semicolon": ";", "tab": "\t"}
CSV: dict[str, Any] = {"index_col": False, "low_memory": False, "skipinitialspace": True, "keep_default_na": False}
MAX_COLUMNS = 20_000  # of a CSV file: each column takes kilobytes, whatever its content
# Values that pandas treats as missing; labels and texts may be any of these words.
NOTHING = (
    *("", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "None", "NULL", "null"),
    *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)


def read_features(path: Path, options: Options) -> Arrays:
    """Read vectors (N, D), optionally standardised, and labels (N,); raise a ValueError if they are invalid."""
    with open_npz(path, "vectors") as file:
        name = next((name for name in FEATURES if name in file), None)
        if name is None:
            raise ValueError(f"it lacks {' or '.join(FEATURES)}, vectors (N, D)")
        values = file.read(name)
        if values.ndim != 2 or not values.size or values.dtype.kind not in "fiub":
            pictures = "; dataset=npz:PATH takes pictures, uint8 (N, H, W, C)" if values.ndim in (3, 4) else ""
            raise ValueError(
                f"{name} has shape {values.shape} and type {values.dtype}; expected numbers (N, D)"
                f"{pictures}{channels_first(values)}"
            )
        keys = sample_keys(values.astype(np.float64))
        return _labelled(file, values)._replace(images=encoding.scale_columns(values, options), keys=keys)


def read_tokens(path: Path, options: Options) -> Arrays:
    """Read tokens (N, L) and labels (N,); raise a ValueError if they are invalid."""
    with open_npz(path, "tokens") as file:
        tokens = file.read("tokens")
        if tokens.ndim != 2 or not tokens.size or tokens.dtype.kind not in "iu":
            raise ValueError(
                f"tokens has shape {tokens.shape} and type {tokens.dtype}; expected whole numbers (N, L), "
                "short texts filled up with 0"
            )
        return _labelled(file, tokens.astype(np.int64), vocabulary=int(tokens.max()) + 1)


def _labelled(file: NpzReader, inputs: Inputs, vocabulary: int | None = None) -> Arrays:
    file.refuse("owner", "split")
    labels, classes = file.read("labels"), file.get("classes")
    if labels.shape != (len(inputs),):
        raise ValueError(f"labels has shape {labels.shape}; expected ({len(inputs)},)")
    encoded = encoding.encode_labels(labels, "it") if classes is None else check_labels(labels, classes, len(labels))
    split, groups = np.zeros(len(labels), np.int8), file.get("groups")
    return Arrays(inputs, encoded[0], split, encoded[1], vocabulary=vocabulary, groups=groups)


def read_table(path: Path, options: Options) -> Arrays:
    """Read a CSV file; raise a ValueError if it is invalid."""
    frame = read_frame(path, SEPARATORS[options.separator], [options.label, *([options.text] if options.text else [])])
    if options.label in frame:
        # NA, nan and the like are missing labels if all others are numbers; among words they are words.
        labels = frame[options.label]
        gaps = labels.isin(NOTHING)
        if gaps.any() and not import_pandas().to_numeric(labels[~gaps], errors="coerce").isna().any():
            frame[options.label] = labels.mask(gaps)
    return frame_arrays(frame, options, str(path))


def frame_arrays(frame: Frame, options: Options, where: str) -> Arrays:
    """Build vectors from all columns but the label's, or tokens from the column of texts."""
    encoding.check_columns([str(name) for name in frame.columns], options, "text", where)
    if not len(frame):
        raise ValueError(f"{where} has no rows.")
    for name, noun in ((options.label, "label"), (options.text, "text")):
        if name is not None and (gaps := frame[name].isna().to_numpy()).any():
            row = int(gaps.argmax()) + 1
            raise ValueError(f"The column {shown(name)} of {where} has no {noun} in row {row}; every row needs one.")
    where_label = f"The column {shown(options.label)} of {where}"
    labels, classes = encoding.encode_labels(frame[options.label].to_numpy(), where_label)
    split, groups = np.zeros(len(labels), np.int8), None
    if options.group is not None:
        if (gaps := frame[options.group].isna().to_numpy()).any():
            row = int(gaps.argmax()) + 1
            raise ValueError(f"The column {shown(options.group)} of {where} has no group in row {row}.")
        groups = frame[options.group].to_numpy().astype(str)
    if options.text is not None:
        tokens = encoding.tokenise([str(text) for text in frame[options.text]], options)
        return Arrays(tokens, labels, split, classes, vocabulary=options.vocabulary, groups=groups)
    inputs = frame.drop(columns=[options.label, *([options.group] if options.group else []), *options.drop])
    vectors = encoding.encode_columns(inputs, options, where)
    return Arrays(vectors, labels, split, classes, keys=row_keys(inputs), groups=groups)


def row_keys(frame: Frame) -> NDArray[np.uint64]:
    """Hash each row of a table (N,), before columns are scaled: numbers by their value, all else as text."""
    pandas = import_pandas()
    keys = np.zeros(len(frame), np.uint64)
    for name in frame.columns:
        column = frame[name]
        numeric = pandas.api.types.is_numeric_dtype(column.dtype)
        values = column.to_numpy(np.float64, na_value=np.nan) if numeric else column.astype(str).to_numpy(object)
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + pandas.util.hash_array(values, categorize=False)
    return sample_keys(keys.astype("<u8")[:, None])


def read_frame(path: Path, separator: str, words: Sequence[str] = ()) -> Frame:
    """Read a CSV file with pandas; in columns `words` only the empty text is missing, in others also NA and alike."""
    pandas = import_pandas()
    require_room(2 * require_file(path, "table").st_size, f"The table {path}", ADVICE)
    try:
        missing = {name: [""] if name in words else list(NOTHING) for name in _read_header(path, separator)}
        with Watched(path) as file, warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # for rows longer than the first line
            text = io.TextIOWrapper(io.BufferedReader(file, CHUNK), "utf-8-sig", newline="")
            return pandas.read_csv(text, sep=separator, na_values=missing, **CSV)
    except pandas.errors.ParserWarning:
        raise ValueError(f"{path} cannot be read as a table: rows have more columns than the first line.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as a table: it is not UTF-8 text ({error.reason}).") from error
    except (ValueError, csv.Error) as error:  # includes pandas' own errors
        problem = encoding.one_line(error).removeprefix("Error tokenizing data. C error: ")
        raise ValueError(f"{path} cannot be read as a table: {problem}.") from error


class Watched(io.FileIO):
    """File that reports its reading progress."""

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes, and report progress."""
        if count := super().readinto(buffer) or 0:
            report(f"Reading {Path(str(self.name)).name}", self.tell(), os.fstat(self.fileno()).st_size)
        return count


def import_pandas() -> Any:
    """Import pandas, an optional dependency."""
    if find_spec("pandas") is None:
        raise ValueError("Tables need pandas, which is not installed: pip install '.[frame]' in a checkout.")
    return import_module("pandas")


def _read_header(path: Path, separator: str) -> list[str]:
    """Read the column names; raise a ValueError for an empty or repeated name, which pandas would change."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file, delimiter=separator, skipinitialspace=True), [])
    names = [name.strip() for name in header]
    if not names:
        raise ValueError("it is empty; expected a first line with the names of the columns")
    if len(names) > MAX_COLUMNS:
        raise ValueError(
            f"its first line has {len(names)} names, and {MAX_COLUMNS} columns at most are taken; "
            "dataset=array:PATH takes wider rows from an .npz file"
        )
    if len(names) < 2:
        raise ValueError(f"its first line has one name only ({shown(names[0])}); dataset.separator sets the separator")
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} has no name in the first line")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"the name {shown(repeated[0])} is there twice in the first line")
    return header
