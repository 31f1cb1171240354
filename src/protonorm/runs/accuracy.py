"""From counts to accuracies and the measures beside them. Nothing here needs torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.digits import digits
from protonorm.runs.schema import Accuracy

WORST = 0.1  # the share of clients whose mean accuracy is `worst`
TENTH = 10  # the percentile `p10`

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]


def accuracy_of(correct: Integers, support: Integers, **beside: Any) -> Accuracy | None:
    """Condense right answers and samples of each client, both (M,); None if nobody has a sample.

    `beside` are measures that were taken elsewhere: balanced, f1, log_loss, calibration.
    """
    tested = support > 0
    if not tested.any():
        return None
    shares = np.sort(correct[tested] / support[tested])
    worst = shares[: math.ceil(WORST * len(shares))]
    return Accuracy(
        pooled=digits(int(correct.sum()) / int(support.sum())),
        mean=digits(shares.mean()),
        worst=digits(worst.mean()),
        p10=digits(np.percentile(shares, TENTH)),
        **{name: None if value is None else digits(value) for name, value in beside.items()},
    )


def balanced_accuracy(correct: Integers, support: Integers) -> float | None:
    """Average the recall of the classes that a client has samples of, both (K,); None without samples."""
    held = support > 0
    return float((correct[held] / support[held]).mean()) if held.any() else None


def macro_f1(correct: Integers, support: Integers, predicted: Integers) -> float | None:
    """Average F1 = 2·right/(samples + predictions) over the classes that occur among either, all (K,)."""
    size = support + predicted
    occurs = size > 0
    return float((2 * correct[occurs] / size[occurs]).mean()) if support.any() else None


def calibration_error(bins: Numbers) -> float | None:
    """Average |accuracy − confidence| of bins (3, B) of samples, confidence and right answers, weighted by samples."""
    samples, confidence, right = bins
    return float(np.abs(right - confidence).sum() / samples.sum()) if samples.sum() else None


def majority_correct(train: Integers, test: Integers) -> Integers:
    """Count the right answers (M, K) of guessing each client's most frequent training class; counts are (M, K)."""
    correct = np.zeros_like(test)
    rows, guess = np.arange(len(test)), train.argmax(1)
    correct[rows, guess] = test[rows, guess]
    return correct
