"""Metrics that weight all classes equally, independent of their numbers of samples."""

from __future__ import annotations

import math
from typing import ClassVar

from protonorm.metrics.base import Counts, Integers, Metric


class BalancedAccuracy(Metric):
    """Mean recall over the classes of which a client has samples."""

    title: ClassVar[str] = "balanced"
    meaning: ClassVar[str] = "mean over clients of the mean recall of their classes"

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the mean of correct/support over the classes with samples."""
        there = support > 0
        return float((counts["correct"][there] / support[there]).mean()) if there.any() else math.nan


class MacroF1(Metric):
    """Mean of F1 = 2·correct/(support + predicted) over the classes that occur among samples or predictions."""

    title: ClassVar[str] = "macro-F1"
    meaning: ClassVar[str] = "mean over clients of the mean F1 of classes"

    def of_client(self, counts: Counts, support: Integers) -> float:
        """Compute the mean F1 over the classes that occur."""
        size = support + counts["predicted"]
        occurs = size > 0
        return float((2 * counts["correct"][occurs] / size[occurs]).mean()) if support.any() else math.nan
