"""Metrics: counted at the clients, summed at the server, finished for the table."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]
Counts = Mapping[str, NDArray[Any]]  # by name, without the rule

BINS = 15  # number of confidence bins of the calibration error
LEAST_LOG = math.log(1e-12)  # lower bound of log-probabilities
ROUNDED = 1 + 1e-6  # tolerance for rounding in a sum of fractions


class Count(NamedTuple):
    """Shape and type of a named count."""

    shape: tuple[int | str, ...] = ()  # "K" stands for the number of classes
    dtype: str = "float64"  # or int64, int32

    def sizes(self, num_classes: int) -> tuple[int, ...]:
        """Return the shape for a number of classes."""
        return tuple(num_classes if size == "K" else int(size) for size in self.shape)


class Answers(NamedTuple):
    """Batch of predictions under a rule."""

    scores: Tensor  # (B, K)
    labels: Tensor  # (B,)
    predicted: Tensor  # (B,)
    correct: Tensor  # (B,) 1 or 0
    log_probabilities: Tensor | None  # (B, K) float64, for rules whose scores are probabilities


class Metric(ABC):
    """Measure of the predictions under a rule.

    Clients count `support`, `correct` and `predicted`, each (K,), for every metric; `counts` declares the additional
    counts of a metric, which are sent and summed under `NAME.RULE`.
    """

    title: ClassVar[str]  # column heading
    meaning: ClassVar[str]  # explanation of the value over all clients, a single line
    share: ClassVar[bool] = True  # whether it lies between 0 and 1 and is shown in per cent
    probabilities: ClassVar[bool] = False  # whether it needs a rule whose scores are probabilities
    optional: ClassVar[bool] = False  # whether it is counted with metrics=ranking alone
    by_class: ClassVar[bool] = False  # whether it has values of single classes, whose mean is a client's value
    counts: ClassVar[Mapping[str, Count]] = {}

    def count(self, answers: Answers, counts: dict[str, Tensor]) -> None:
        """Add a batch to the metric's counts in place, at the client."""
        del answers, counts  # correct and predicted suffice

    def check(self, counts: Mapping[str, Tensor], support: Tensor, rule: str) -> None:
        """Raise a ValueError for counts that are impossible for `support` (K,) samples, at the server."""
        del counts, support, rule

    @abstractmethod
    def of_client(self, counts: Counts, support: Integers) -> float:
        """Return a client's value; NaN without samples."""

    def of_classes(self, counts: Counts) -> Numbers:
        """Return a client's values of all classes (K,); NaN for a class without one."""
        raise NotImplementedError(f"{type(self).__name__} has no values of single classes.")

    def finish(self, clients: Numbers, sums: Counts, samples: int) -> float | None:
        """Return the value over all clients; by default the mean of the clients' values.

        Args:
            clients: (M,) Values of the clients; NaN for clients without a value.
            sums: The metric's counts, summed over the clients that have them.
            samples: Number of samples of these clients.
        """
        del sums, samples
        mean = mean_of_known(clients)
        return None if math.isnan(mean) else mean


class BalancedAccuracy(Metric):
    """Mean recall over the classes of which a client has samples."""

    title: ClassVar[str] = "balanced"
    meaning: ClassVar[str] = "mean over clients of the mean recall of their classes"

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the mean of correct/support over the classes with samples."""
        present = support > 0
        return float((counts["correct"][present] / support[present]).mean()) if present.any() else math.nan


class MacroF1(Metric):
    """Mean of F1 = 2·correct/(support + predicted) over the classes that occur among samples or predictions."""

    title: ClassVar[str] = "macro-F1"
    meaning: ClassVar[str] = "mean over clients of the mean F1 of classes"

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the mean F1 over the classes that occur."""
        size = support + counts["predicted"]
        occurs = size > 0
        return float((2 * counts["correct"][occurs] / size[occurs]).mean()) if support.any() else math.nan


class LogLoss(Metric):
    """Mean of −log p of the true class, in nats."""

    title: ClassVar[str] = "log loss"
    meaning: ClassVar[str] = "mean over samples of −log p of the true class, in nats; lower is better"
    share: ClassVar[bool] = False
    probabilities: ClassVar[bool] = True
    counts: ClassVar[Mapping[str, Count]] = {"nll": Count()}  # Σ −log p

    def count(self, answers: Answers, counts: dict[str, Tensor]) -> None:
        """Add −log p of the true classes."""
        assert answers.log_probabilities is not None
        true = answers.log_probabilities.gather(1, answers.labels.unsqueeze(1))
        counts["nll"] += -true.clamp(min=LEAST_LOG).sum()

    def check(self, counts: Mapping[str, Tensor], support: Tensor, rule: str) -> None:
        """Raise if the sum exceeds that of samples with probability 1e-12."""
        if counts["nll"] > -ROUNDED * LEAST_LOG * support.sum():
            raise ValueError(f"Its counts have a nll.{rule} that is larger than probabilities can make it.")

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the mean over a client's samples."""
        return float(counts["nll"]) / samples if (samples := int(support.sum())) else math.nan

    def of_classes(self, counts: Counts) -> Numbers:
        """Return a client's values of all classes (K,); NaN for a class without one."""
        raise NotImplementedError(f"{type(self).__name__} has no values of single classes.")

    def finish(self, clients: Numbers, sums: Counts, samples: int) -> float | None:
        """Compute the mean over all samples."""
        return float(sums["nll"]) / samples if samples else None


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
        samples, confidences, correct = counts["bins"]  # rows of a single tensor, updated in place
        samples.index_add_(0, bins, confidence.new_ones(len(confidence)))
        confidences.index_add_(0, bins, confidence)
        correct.index_add_(0, bins, answers.correct.double())

    def check(self, counts: Mapping[str, Tensor], support: Tensor, rule: str) -> None:
        """Raise if bins do not add up to the samples, or have more confidence or correct predictions than samples."""
        samples, confidence, correct = counts["bins"]
        if (
            samples.sum() != support.sum()
            or bool((confidence > ROUNDED * samples).any())
            or bool((correct > samples).any())
        ):
            raise ValueError(f"Its counts have bins.{rule} that are not those of its samples.")

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the error of a client."""
        error = calibration_error(counts["bins"])
        return math.nan if error is None else error

    def of_classes(self, counts: Counts) -> Numbers:
        """Return a client's values of all classes (K,); NaN for a class without one."""
        raise NotImplementedError(f"{type(self).__name__} has no values of single classes.")

    def finish(self, clients: Numbers, sums: Counts, samples: int) -> float | None:
        """Compute the error over the samples of all clients."""
        return calibration_error(sums["bins"])


def mean_of_known(values: Numbers) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def calibration_error(bins: Numbers) -> float | None:
    """Compute the mean |accuracy − confidence| of bins (3, B), weighted by samples; clamped to 1 against rounding."""
    samples, confidence, correct = bins
    return min(1.0, float(np.abs(correct - confidence).sum() / samples.sum())) if samples.sum() else None
