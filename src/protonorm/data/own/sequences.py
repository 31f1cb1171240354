"""Lists of numbers, one for each sample, to vectors or tokens. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.types import shown
from protonorm.data.access import require_room
from protonorm.data.own.columns import ColumnOptions, as_they_are, standardised
from protonorm.data.own.tokens import TokenOptions


def number_rows(values: Sequence[Any], about: str) -> list[NDArray[Any]]:
    """Make an array (n,) of each sample's list."""
    rows = []
    for number, value in enumerate(values):
        try:
            row = np.atleast_1d(np.array(value))
        except ValueError:  # lists of different lengths in it
            row = np.array(["ragged"])
        if row.ndim > 1 or (row.size and row.dtype.kind not in "fiu"):
            raise ValueError(f"{about} holds {shown(value)} in row {number + 1}; expected a list of numbers.")
        rows.append(row if row.size else row.astype(np.int64))
    return rows


def padded(rows: Sequence[NDArray[Any]], options: TokenOptions, about: str) -> NDArray[np.int64]:
    """Make tokens (N, L): short texts are filled up with 0, and long ones cut if a length is given."""
    longest = max(1, *map(len, rows))
    most = min(options.length or longest, longest)
    require_room(8 * most * len(rows), f"{about} with {most} tokens a row", "dataset.length=256, say, makes it less.")
    tokens = np.zeros((len(rows), most), np.int64)
    for target, row in zip(tokens, rows, strict=True):
        target[: len(row)] = row[:most]
    if tokens.min() < 0:
        raise ValueError(f"{about} holds the token {tokens.min()}; expected numbers from 0.")
    return tokens


def vectors(rows: Sequence[NDArray[Any]], options: ColumnOptions, about: str) -> NDArray[np.float32]:
    """Make vectors (N, D), if all have one length."""
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]) or not len(row):
            raise ValueError(
                f"{about} is ragged: row 1 has {len(rows[0])} numbers, row {number + 1} has {len(row)}; "
                "expected vectors of one length."
            )
    values = np.stack(rows).astype(np.float64)
    try:
        return standardised(values) if options.standardise else as_they_are(values)
    except ValueError as error:
        raise ValueError(f"{about} cannot be used: its {error}.") from None
