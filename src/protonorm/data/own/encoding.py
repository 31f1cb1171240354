"""Conversion of labels, columns, texts and lists of numbers to arrays. Nothing here needs torch."""

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report, steps
from protonorm.core.registry import nearest
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.data.access import require_room

Missing = Literal["refuse", "mean"]
Separator = Literal["comma", "semicolon", "tab"]
Unit = Literal["words", "characters"]
Frame = Any  # a pandas.DataFrame or one of its columns: pandas is an optional dependency

MAX_CLASSES = 10_000
LONGEST = 200  # maximum length of another library's error text
ROWS = 2**16  # rows processed at once
ADVICE = "fewer rows or columns are needed."
DEFAULT_LENGTH = {"words": 64, "characters": 256}
WORD = re.compile(r"\w+|[^\w\s]")  # a word, or a character that is neither word nor space


class Options(NamedTuple):
    """Settings for reading user data; each kind of data uses some of them."""

    label: str = "label"  # column of the classes
    input: str | None = None  # of Hugging Face datasets: column to learn from
    text: str | None = None  # of a table: column to read as text; the others are then ignored
    drop: tuple[str, ...] = ()  # columns to ignore
    separator: Separator = "comma"
    missing: Missing = "refuse"  # missing values raise an error, or are replaced by the column's mean
    categories: int = 50  # maximum number of distinct words in a column
    standardise: bool = True
    unit: Unit = "words"
    length: int | None = None  # maximum tokens per text; None: 64 words or 256 characters, and whole token lists
    vocabulary: int = 4096  # V: tokens are 1 to V − 1, and 0 is padding
    size: int | None = None  # side length of images in pixels; None: their own, if all are equal
    channels: int | None = None  # of images, 1 or 3; None: their own, if all are equal
    skip_bad: bool = False  # skip unreadable images
    window: str | None = None  # of images with more than eight bits: CENTRE/WIDTH of the values that are told apart
    group: str | None = None  # column that says which rows belong together, for partition=natural


def check_columns(known: Sequence[str], options: Options, setting: Literal["input", "text"], where: str) -> None:
    """Raise a ValueError if settings name unknown columns, or one column for two purposes."""
    chosen: str | None = getattr(options, setting)
    inputs: list[tuple[str, str]] = [(setting, chosen)] if chosen else []
    inputs += [("group", options.group)] if options.group else []
    for name, column in [("label", options.label), *inputs, *(("drop", name) for name in options.drop)]:
        if column not in known:
            raise ValueError(f"{where} has no column {shown(column)} for dataset.{name}; {nearest(column, known)}")
    names = [options.label, *(column for _, column in inputs)]
    if len(set(names)) < len(names) or set(names) & set(options.drop):
        group = "dataset.group, " if options.group else ""
        raise ValueError(f"dataset.label, {group}dataset.{setting} and dataset.drop must name different columns.")


def one_line(error: Exception) -> str:
    """Return another library's error text in one line."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, LONGEST).rstrip(".")


def encode_labels(values: NDArray[Any], where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number the distinct labels (N,) in sorted order, and name them; raise a ValueError if they are not classes."""
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{where} has labels of shape {values.shape}; expected (N,).")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError(f"{where} has labels that are NaN or infinite.")
        invalid = values[(values != np.floor(values)) | (np.abs(values) > 2**53)]
        if len(invalid):
            raise ValueError(
                f"{where} has the label {invalid[0]:g}; expected classes, which are whole numbers or words."
            )
        values = values.astype(np.int64)
    elif values.dtype.kind not in "iub":
        values = values.astype(str)
    distinct, labels = np.unique(values, return_inverse=True)
    if len(distinct) > min(MAX_CLASSES, max(2, len(values) // 2)):
        raise ValueError(
            f"{where} has {len(distinct)} different labels for {len(values)} samples; expected classes, of which each "
            f"has several samples, and {MAX_CLASSES} at most."
        )
    return labels.astype(np.int64), tuple(map(str, distinct.tolist()))


def refuse_one_class(classes: Sequence[str], where: str) -> None:
    """Raise a ValueError if there is only one class, which is too few for an experiment."""
    if len(classes) < 2:
        raise ValueError(f"{where} has one class only ({classes[0]}); there is nothing to tell apart.")


def encode_columns(frame: Frame, options: Options, where: str) -> NDArray[np.float32]:
    """Build vectors (N, D) from a table's columns, in their order."""
    blocks: list[NDArray[np.float32]] = []
    width = 0
    for name in steps(list(frame.columns), "Reading columns"):
        blocks.append(_encode_column(frame[name], options, f"The column {shown(str(name))} of {where}"))
        width += blocks[-1].shape[1]
        require_room(2 * 4 * width * len(frame), f"{where} with {width} numbers a row", ADVICE)
    if not blocks:
        raise ValueError(f"{where} has no column but that of the labels; expected some to learn from.")
    return np.concatenate(blocks, axis=1)


def _encode_column(column: Frame, options: Options, where: str) -> NDArray[np.float32]:
    """Return a column of numbers as (N, 1), one of c distinct words as one-hot rows (N, c)."""
    from pandas.api.types import infer_dtype, is_numeric_dtype

    gaps: NDArray[np.bool_] = column.isna().to_numpy(dtype=bool)
    if gaps.any() and options.missing == "refuse":
        raise ValueError(
            f"{where} has no value in {gaps.sum()} of {len(gaps)} rows, first in row {int(gaps.argmax()) + 1} "
            "(in a CSV file words such as NA, None, null and nan count as none); "
            "dataset.missing=mean puts the column's mean there."
        )
    if gaps.all():
        raise ValueError(f"{where} is empty; leave it out with dataset.drop.")
    # Booleans count as numbers, and so do integers of more than 64 bits.
    numeric = is_numeric_dtype(column.dtype) or infer_dtype(column) == "integer"
    return (_encode_numbers if numeric else _encode_words)(column, gaps, options, where)


def _encode_numbers(column: Frame, gaps: NDArray[np.bool_], options: Options, where: str) -> NDArray[np.float32]:
    try:
        values: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError:
        raise ValueError(f"{where} holds too large numbers.") from None
    if np.isinf(values).any():
        raise ValueError(f"{where} holds infinite numbers.")
    if gaps.any():
        values = np.where(gaps, values[~gaps].mean(), values)
    try:
        return scale_columns(values[:, None], options, [where])
    except ValueError as error:
        raise ValueError(f"{error}.") from None


def _encode_words(column: Frame, gaps: NDArray[np.bool_], options: Options, where: str) -> NDArray[np.float32]:
    """Return one-hot rows in the sorted order of the words."""
    words, codes = np.unique(column[~gaps].astype(str).to_numpy(dtype=object).astype(str), return_inverse=True)
    if len(words) > options.categories:
        raise ValueError(
            f"{where} has {len(words)} different words, and {options.categories} at most are allowed{_hint(column)}; "
            "leave it out with dataset.drop, or set dataset.categories."
        )
    result = np.zeros((len(column), len(words)), np.float32)
    result[np.flatnonzero(~gaps), codes] = 1
    result[gaps] = result[~gaps].mean(0)
    return result


def _hint(column: Frame) -> str:
    """Explain which values keep a column from being numeric, if most of it is."""
    import pandas

    try:
        numbers: Frame = pandas.to_numeric(column, errors="coerce")
    except OverflowError:  # a number of hundreds of digits
        return ""
    textual = (numbers.isna() & column.notna()).to_numpy(dtype=bool)
    if not textual.any() or textual.mean() > 0.5:
        return ""
    row = int(textual.argmax())
    return f" (numbers but for {textual.sum()}, such as {shown(str(column.iloc[row]))} in row {row + 1})"


def scale_columns(values: NDArray[Any], options: Options, names: Sequence[str] = ()) -> NDArray[np.float32]:
    """Convert columns (N, D), standardised if wanted; raise a ValueError that names a column of unusable numbers."""
    with np.errstate(all="ignore"):
        if options.standardise:
            mean = _mean(values, lambda rows: rows)  # (D,)
            deviation = np.sqrt(_mean(values, lambda rows: np.square(rows - mean)))
            unusable = np.flatnonzero(~np.isfinite(mean) | ~np.isfinite(deviation))
        else:
            result = values.astype(np.float32)
            unusable = np.flatnonzero(~np.isfinite(result).all(0))
    if len(unusable):
        name = names[unusable[0]] if names else f"column {unusable[0] + 1}"
        worst = np.nan_to_num(np.abs(values[:, unusable[0]].astype(np.float64)), nan=np.inf)
        raise ValueError(f"{name} holds NaN, infinite or too large numbers, such as in row {int(worst.argmax()) + 1}")
    if not options.standardise:
        return result
    scale = np.where(values.min(0) == values.max(0), np.inf, deviation)  # rounding can give a constant some deviation
    scale[scale == 0] = np.inf
    result = np.empty(values.shape, np.float32)
    for start in range(0, len(values), ROWS):
        report("Standardising", start, len(values))
        result[start : start + ROWS] = (values[start : start + ROWS].astype(np.float64) - mean) / scale
    report("Standardising", len(values), len(values))
    return result


def _mean(values: NDArray[Any], transform: Any) -> NDArray[np.float64]:
    """Compute the mean over the rows in double precision, without copying all of them."""
    parts = (transform(values[start : start + ROWS].astype(np.float64)).sum(0) for start in range(0, len(values), ROWS))
    total: NDArray[np.float64] = sum(parts, np.zeros(values.shape[1])) / len(values)
    return total


def tokenise(texts: Sequence[str], options: Options) -> NDArray[np.int64]:
    """Build tokens (N, L) from texts: their first words or characters, case-insensitive."""
    limit = options.length or DEFAULT_LENGTH[options.unit]
    rows = [hashes(text, options.unit, limit, options.vocabulary) for text in steps(texts, "Reading texts")]
    return padded(rows, options, "The column of texts")


def hashes(text: str, unit: Unit, limit: int, vocabulary: int) -> list[int]:
    """Return a text's tokens; a run of spaces counts as one character, and is ignored between words."""
    normalised = " ".join(text.casefold().split())
    pieces = WORD.findall(normalised) if unit == "words" else list(normalised)
    return [_token(piece, vocabulary) for piece in pieces[:limit]]


@lru_cache(maxsize=2**16)
def _token(piece: str, vocabulary: int) -> int:
    return 1 + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % (vocabulary - 1)


def number_rows(values: Sequence[Any], where: str) -> list[NDArray[Any]]:
    """Convert each sample's list to an array (n,)."""
    rows = []
    for number, value in enumerate(values, 1):
        try:
            row = np.atleast_1d(np.array(value))
        except ValueError:  # nested lists of different lengths
            row = np.array(["ragged"])
        if row.ndim > 1 or (row.size and row.dtype.kind not in "fiu"):
            raise ValueError(f"{where} holds {shown(value)} in row {number}; expected a list of numbers.")
        rows.append(row if row.size else row.astype(np.int64))
    return rows


def padded(rows: Sequence[Sequence[int] | NDArray[Any]], options: Options, where: str) -> NDArray[np.int64]:
    """Build tokens (N, L): short texts are padded with 0, and long ones truncated if a length is given."""
    longest = max(1, *map(len, rows))
    length = min(options.length or longest, longest)
    require_room(
        8 * length * len(rows), f"{where} with {length} tokens a row", "dataset.length=256, say, makes it less."
    )
    tokens = np.zeros((len(rows), length), np.int64)
    for target, row in zip(tokens, rows, strict=True):
        target[: len(row)] = row[:length]
    if tokens.min() < 0:
        raise ValueError(f"{where} holds the token {tokens.min()}; expected numbers from 0.")
    return tokens


def vectors(rows: Sequence[NDArray[Any]], options: Options, where: str) -> NDArray[np.float32]:
    """Build vectors (N, D); raise a ValueError if their lengths differ."""
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]) or not len(row):
            raise ValueError(
                f"{where} is ragged: row 1 has {len(rows[0])} numbers, row {number} has {len(row)}; "
                "expected vectors of one length."
            )
    try:
        return scale_columns(np.stack(rows).astype(np.float64), options)
    except ValueError as error:
        raise ValueError(f"{where} cannot be used: its {error}.") from None
