"""Columns of a table to vectors: numbers are standardised, words become a column of zeros and ones for each.

Mean and deviation are those of all samples of the file. Nothing here needs torch.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report, steps
from protonorm.core.types import shown
from protonorm.data.access import require_room

ROWS = 2**16  # that are computed at once
ADVICE = "fewer rows or columns are needed."

Missing = Literal["refuse", "mean"]
Frame = Any  # a pandas.DataFrame, and its columns: pandas is an extra


class ColumnOptions(NamedTuple):
    """What is done with columns."""

    missing: Missing = "refuse"  # what is done where nothing stands
    categories: int = 50  # different words of a column at most
    standardise: bool = True


def encode_columns(frame: Frame, options: ColumnOptions, where: str) -> NDArray[np.float32]:
    """Make vectors (N, D) of a table's columns, in their order."""
    blocks: list[NDArray[np.float32]] = []
    width = 0
    for name in steps(list(frame.columns), "Reading columns"):
        column = frame[name]
        encode = _words if _is_text(column) else _numbers
        blocks.append(encode(column, options, f"The column {shown(str(name))} of {where}"))
        width += blocks[-1].shape[1]
        require_room(2 * 4 * width * len(frame), f"{where} with {width} numbers a row", ADVICE)
    if not blocks:
        raise ValueError(f"{where} has no column but that of the labels; expected some to learn from.")
    return np.concatenate(blocks, axis=1)


def standardised(values: NDArray[Any], names: list[str] | None = None) -> NDArray[np.float32]:
    """Bring each column of (N, D) to mean 0 and deviation 1 over all rows; one that is constant becomes 0.

    A column that holds NaN, infinite or too large numbers is refused by its name, or by its number from 1.
    """
    with np.errstate(all="ignore"):
        mean = _mean(values, lambda rows: rows)  # (D,)
        deviation = np.sqrt(_mean(values, lambda rows: np.square(rows - mean)))
    bad = np.flatnonzero(~np.isfinite(mean) | ~np.isfinite(deviation))
    if len(bad):
        who = names[bad[0]] if names else f"column {bad[0] + 1}"
        raise ValueError(f"{who} holds NaN, infinite or too large numbers")
    scale = np.where(values.min(0) == values.max(0), np.inf, deviation)  # rounding may leave a constant some deviation
    scale[scale == 0] = np.inf
    result = np.empty(values.shape, np.float32)
    for start in range(0, len(values), ROWS):
        report("Standardising", start, len(values))
        result[start : start + ROWS] = (values[start : start + ROWS].astype(np.float64) - mean) / scale
    report("Standardising", len(values), len(values))
    return result


def as_they_are(values: NDArray[Any]) -> NDArray[np.float32]:
    """Take columns (N, D) without a change; one with NaN, infinite or too large numbers is refused by its number."""
    with np.errstate(over="ignore"):
        vectors = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(vectors).all(0))
    if len(bad):
        raise ValueError(f"column {bad[0] + 1} holds NaN, infinite or too large numbers")
    return vectors


def _mean(values: NDArray[Any], of: Any) -> NDArray[np.float64]:
    """Average over the rows in double precision, without a copy of them all."""
    parts = (of(values[start : start + ROWS].astype(np.float64)).sum(0) for start in range(0, len(values), ROWS))
    total: NDArray[np.float64] = sum(parts, np.zeros(values.shape[1])) / len(values)
    return total


def _is_text(column: Frame) -> bool:
    from pandas.api.types import infer_dtype, is_numeric_dtype

    if is_numeric_dtype(column.dtype):  # true and false count as numbers
        return False
    return bool(infer_dtype(column) != "integer")  # whole numbers that no type of 64 bits holds


def _numbers(column: Frame, options: ColumnOptions, where: str) -> NDArray[np.float32]:
    """Give a column of numbers as (N, 1)."""
    try:
        values: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError:
        raise ValueError(f"{where} holds too large numbers.") from None
    gaps = _gaps(column, options, where)
    if gaps.all():
        raise ValueError(f"{where} is empty; leave it out with dataset.drop.")
    if np.isinf(values).any():
        raise ValueError(f"{where} holds infinite numbers.")
    if gaps.any():
        values = np.where(gaps, values[~gaps].mean(), values)
    if options.standardise:
        try:
            return standardised(values[:, None], [where])
        except ValueError as error:
            raise ValueError(f"{error}.") from None
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise ValueError(f"{where} holds too large numbers.")
    return values.astype(np.float32)[:, None]


def _words(column: Frame, options: ColumnOptions, where: str) -> NDArray[np.float32]:
    """Give a column of c different words as zeros and ones (N, c), in the order of the words."""
    gaps = _gaps(column, options, where)
    if gaps.all():
        raise ValueError(f"{where} is empty; leave it out with dataset.drop.")
    known, codes = np.unique(column[~gaps].astype(str).to_numpy(dtype=object).astype(str), return_inverse=True)
    if len(known) > options.categories:
        raise ValueError(
            f"{where} has {len(known)} different words, and {options.categories} at most are allowed{_hint(column)}; "
            "leave it out with dataset.drop, or set dataset.categories."
        )
    result = np.zeros((len(column), len(known)), np.float32)
    result[np.flatnonzero(~gaps), codes] = 1
    result[gaps] = result[~gaps].mean(0)
    return result


def _gaps(column: Frame, options: ColumnOptions, where: str) -> NDArray[np.bool_]:
    """Find where nothing stands, (N,), and refuse that unless the mean may stand there."""
    gaps: NDArray[np.bool_] = column.isna().to_numpy(dtype=bool)
    if gaps.any() and options.missing == "refuse":
        raise ValueError(
            f"{where} has no value in {gaps.sum()} of {len(gaps)} rows, first in row {int(gaps.argmax()) + 1} "
            "(in a CSV file words such as NA, None, null and nan count as none); "
            "dataset.missing=mean puts the column's mean there."
        )
    return gaps


def _hint(column: Frame) -> str:
    """Say what keeps a column from being numbers, if most of it is."""
    import pandas

    try:
        numbers: Frame = pandas.to_numeric(column, errors="coerce")
    except OverflowError:  # a word of hundreds of digits
        return ""
    odd = (numbers.isna() & column.notna()).to_numpy(dtype=bool)
    if not odd.any() or odd.mean() > 0.5:
        return ""
    row = int(odd.argmax())
    return f" (numbers but for {odd.sum()}, such as {shown(str(column.iloc[row]))} in row {row + 1})"
