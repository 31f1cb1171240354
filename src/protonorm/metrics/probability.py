"""Metrics of predicted probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from protonorm.metrics.base import Answers, Count, Counts, Integers, Metric, Numbers

if TYPE_CHECKING:
    from torch import Tensor

BINS = 15  # number of confidence bins of the calibration error
LEAST_LOG = math.log(1e-12)  # lower bound of log-probabilities
ROUNDED = 1 + 1e-6  # tolerance for rounding in a sum of fractions


class LogLoss(Metric):
    """Mean of −log p of the true class, in nats."""

    title: ClassVar[str] = "log loss"
    meaning: ClassVar[str] = "mean over samples of −log p of the true class, in nats; lower is better"
    share: ClassVar[bool] = False
    probabilities: ClassVar[bool] = True
    counts: ClassVar[Mapping[str, Count]] = {"surprise": Count()}  # Σ −log p

    def count(self, answers: Answers, counts: dict[str, Tensor]) -> None:
        """Add −log p of the true classes."""
        assert answers.log_probabilities is not None
        true = answers.log_probabilities.gather(1, answers.labels.unsqueeze(1))
        counts["surprise"] += -true.clamp(min=LEAST_LOG).sum()

    def check(self, counts: Mapping[str, Tensor], support: Tensor, rule: str) -> None:
        """Raise if the sum exceeds that of samples with probability 1e-12."""
        if counts["surprise"] > -ROUNDED * LEAST_LOG * support.sum():
            raise ValueError(f"Its counts have a surprise.{rule} that is larger than probabilities can make it.")

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the mean over a client's samples."""
        return float(counts["surprise"]) / samples if (samples := int(support.sum())) else math.nan

    def finish(self, clients: Numbers, sums: Counts, samples: int) -> float | None:
        """Compute the mean over all samples."""
        return float(sums["surprise"]) / samples if samples else None


class Calibration(Metric):
    """Expected calibration error: |accuracy − confidence| in bins of confidence, weighted by samples."""

    title: ClassVar[str] = "calibration error"
    meaning: ClassVar[str] = "how far confidence and accuracy are apart, in 15 bins; lower is better"
    probabilities: ClassVar[bool] = True
    counts: ClassVar[Mapping[str, Count]] = {"bins": Count((3, BINS))}  # samples, Σ confidence, correct predictions

    def count(self, answers: Answers, counts: dict[str, Tensor]) -> None:
        """Add samples, confidence and correct predictions to the bins of their confidence."""
        assert answers.log_probabilities is not None
        confidence = answers.log_probabilities.amax(1).exp()  # (B,)
        bins = (confidence * BINS).long().clamp(max=BINS - 1)
        samples, confident, right = counts["bins"]  # rows of a single tensor, updated in place
        samples.index_add_(0, bins, confidence.new_ones(len(confidence)))
        confident.index_add_(0, bins, confidence)
        right.index_add_(0, bins, answers.correct.double())

    def check(self, counts: Mapping[str, Tensor], support: Tensor, rule: str) -> None:
        """Raise if bins do not add up to the samples, or have more confidence or correct predictions than samples."""
        samples, confidence, right = counts["bins"]
        if (
            samples.sum() != support.sum()
            or bool((confidence > ROUNDED * samples).any())
            or bool((right > samples).any())
        ):
            raise ValueError(f"Its counts have bins.{rule} that are not those of its samples.")

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the error of a client."""
        error = calibration_error(counts["bins"])
        return math.nan if error is None else error

    def finish(self, clients: Numbers, sums: Counts, samples: int) -> float | None:
        """Compute the error over the samples of all clients."""
        return calibration_error(sums["bins"])


def calibration_error(bins: Numbers) -> float | None:
    """Compute the mean |accuracy − confidence| of bins (3, B), weighted by samples; clamped to 1 against rounding."""
    samples, confidence, right = bins
    return min(1.0, float(np.abs(right - confidence).sum() / samples.sum())) if samples.sum() else None
