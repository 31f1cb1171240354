"""Measures of how well scores rank samples, one class against all others, from binned scores.

A class's score is its probability p, the softmax of the rule's scores. With z = log(p/(1 − p)) + log(K − 1), which is 0
for p = 1/K, it falls into one of 256 bins of equal width in z/(2 + |z|). Samples in one bin count as ties: the area
under the ROC curve is exact up to half the share of pairs of a sample of the class and another in one bin.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from protonorm.metrics.base import Answers, Count, Counts, Integers, Metric, Numbers, mean_of_known

if TYPE_CHECKING:
    from torch import Tensor

BINS = 256
MIDDLE = 2.0  # |z| at half the way from the middle to the last bin
FARTHEST = 1e6  # bound of |z|: p may be 0 or 1


def bins_of(log_probabilities: Tensor) -> Tensor:
    """Return the bins of log p (B, K); those of NaN, after divergence, are the lowest."""
    logit = log_probabilities - (-log_probabilities.expm1()).log() + math.log(max(log_probabilities.shape[1] - 1, 1))
    logit = logit.nan_to_num(nan=-FARTHEST, posinf=FARTHEST, neginf=-FARTHEST)
    return ((logit / (MIDDLE + logit.abs()) + 1) * (BINS / 2)).long().clamp(0, BINS - 1)


class Ranking(Metric):
    """Measure of one class against all others; a client's value is the mean over the classes with samples of both."""

    optional: ClassVar[bool] = True
    by_class: ClassVar[bool] = True
    counts: ClassVar[Mapping[str, Count]] = {"scores": Count((2, "K", BINS), "int32")}  # of others, of the class

    def count(self, answers: Answers, counts: dict[str, Tensor]) -> None:
        """Add the scores of all classes to their bins."""
        logs = answers.log_probabilities
        bins = bins_of(answers.scores.double().log_softmax(1) if logs is None else logs)  # (B, K)
        classes = bins.shape[1]
        rows = bins.new_zeros(bins.shape).scatter_(1, answers.labels.unsqueeze(1), classes)  # K for its own
        rows += bins.new_ones(classes).cumsum(0) - 1
        flat = counts["scores"].view(-1)
        flat.index_add_(0, (rows * BINS + bins).view(-1), flat.new_ones(rows.numel()))

    def check(self, counts: Mapping[str, Tensor], support: Tensor, rule: str) -> None:
        """Raise if the bins of a class do not add up to its samples and those of the others."""
        others, own = counts["scores"].long().sum(2)  # (K,) each
        if bool((own != support).any()) or bool((others != support.sum() - support).any()):
            raise ValueError(f"Its counts have scores.{rule} that are not those of its samples.")

    def of_classes(self, counts: Counts) -> Numbers:
        """Compute the values of all classes (K,); NaN for a class without samples, or that all samples have."""
        others, own = counts["scores"][:, :, ::-1].astype(np.float64)  # (K, bins) each, the highest scores first
        known = (own.sum(1) > 0) & (others.sum(1) > 0)
        values = np.full(len(known), np.nan)
        values[known] = self.of_bins(own[known], others[known])
        return values

    @abstractmethod
    def of_bins(self, own: Numbers, others: Numbers) -> Numbers:
        """Compute the values of classes from bins (K, 256) of their samples and of the others, highest first."""

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the mean over classes."""
        return mean_of_known(self.of_classes(counts))


class Auroc(Ranking):
    """Area under the ROC curve."""

    title: ClassVar[str] = "AUROC"
    meaning: ClassVar[str] = "mean over clients of the mean over classes of the area under the ROC curve"

    def of_bins(self, own: Numbers, others: Numbers) -> Numbers:
        """Compute the share of pairs in which the class's sample has the higher score; ties count half."""
        above = own.cumsum(1) - own / 2
        areas: Numbers = (above * others).sum(1) / (own.sum(1) * others.sum(1))
        return areas


class Auprc(Ranking):
    """Area under the precision-recall curve, as average precision."""

    title: ClassVar[str] = "AUPRC"
    meaning: ClassVar[str] = "mean over clients of the mean over classes of the average precision"

    def of_bins(self, own: Numbers, others: Numbers) -> Numbers:
        """Compute the precision amid each bin, as if its samples were mixed evenly, weighted by the class's samples."""
        found = own.cumsum(1) - (own - 1) / 2  # for the middle one of the class's samples in a bin
        precision = found / (found + others.cumsum(1) - others / 2)
        areas: Numbers = (own * precision).sum(1) / own.sum(1)
        return areas


class Sensitivity90(Ranking):
    """Largest sensitivity at a bin's edge with a specificity of at least 90 %."""

    title: ClassVar[str] = "sensitivity at 90 %"
    meaning: ClassVar[str] = "mean over clients and classes of the sensitivity at a specificity of 90 %"
    specificity: ClassVar[float] = 0.9

    def of_bins(self, own: Numbers, others: Numbers) -> Numbers:
        """Compute the share of the class's samples above the lowest edge that is specific enough."""
        allowed = (1 - self.specificity) * others.sum(1, keepdims=True) + 1e-9
        shares: Numbers = (own * (others.cumsum(1) <= allowed)).sum(1) / own.sum(1)
        return shares


class Sensitivity95(Sensitivity90):
    """Largest sensitivity at a bin's edge with a specificity of at least 95 %."""

    title: ClassVar[str] = "sensitivity at 95 %"
    meaning: ClassVar[str] = "mean over clients and classes of the sensitivity at a specificity of 95 %"
    specificity: ClassVar[float] = 0.95


class Sensitivity99(Sensitivity90):
    """Largest sensitivity at a bin's edge with a specificity of at least 99 %."""

    title: ClassVar[str] = "sensitivity at 99 %"
    meaning: ClassVar[str] = "mean over clients and classes of the sensitivity at a specificity of 99 %"
    specificity: ClassVar[float] = 0.99
