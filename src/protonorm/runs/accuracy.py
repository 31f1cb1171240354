"""From counts to accuracies. Nothing here needs torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from protonorm.runs.schema import Accuracy

WORST = 0.1  # the share of clients whose mean accuracy is `worst`

Integers = NDArray[np.int64]


def accuracy_of(correct: Integers, support: Integers) -> Accuracy | None:
    """Condense right answers and samples of each client, both (M,); None if nobody has a sample."""
    tested = support > 0
    if not tested.any():
        return None
    shares = np.sort(correct[tested] / support[tested])
    worst = shares[: math.ceil(WORST * len(shares))]
    return Accuracy(
        pooled=digits(int(correct.sum()) / int(support.sum())),
        mean=digits(shares.mean()),
        worst=digits(worst.mean()),
    )


def majority_correct(train: Integers, test: Integers) -> Integers:
    """Count the right answers (M, K) of guessing each client's most frequent training class; counts are (M, K)."""
    correct = np.zeros_like(test)
    rows, guess = np.arange(len(test)), train.argmax(1)
    correct[rows, guess] = test[rows, guess]
    return correct


def digits(value: float) -> float:
    """Keep six significant digits: enough for every table, and short in a file."""
    return float(f"{float(value):.6g}")
