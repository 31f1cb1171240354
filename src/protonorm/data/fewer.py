"""Take fewer samples of a data set than there are, and of each class its share. Nothing here needs torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fewer(labels: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """Choose so many samples, sorted: the first ones of each class, in proportion to what there is of it."""
    if samples > len(labels):
        raise ValueError(f"dataset.samples={samples} is refused: the data set has {len(labels)}.")
    counts = np.bincount(labels)
    if samples < np.count_nonzero(counts):
        raise ValueError(
            f"dataset.samples={samples} is refused: the data set has {np.count_nonzero(counts)} classes, "
            "and each needs a sample."
        )
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(counts) - counts
    place = np.arange(len(labels)) - np.repeat(starts, counts)  # of a sample in its class
    turn = np.lexsort((labels[order], (place + 0.5) / np.repeat(counts, counts)))  # all classes come forward evenly
    turn = np.concatenate([turn[place[turn] == 0], turn[place[turn] != 0]])  # no class is left out
    return np.sort(order[turn[:samples]])
