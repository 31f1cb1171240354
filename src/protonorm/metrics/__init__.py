"""Metrics other than accuracy: a registry of classes.

Importing them does not load torch, because records are read without it.
"""

from functools import cache

from protonorm.core.registry import Entry
from protonorm.metrics.base import Metric

METRICS: dict[str, Entry] = {
    "balanced": Entry("protonorm.metrics.base:BalancedAccuracy", "mean recall of the classes"),
    "f1": Entry("protonorm.metrics.base:MacroF1", "mean F1 of the classes"),
    "log_loss": Entry("protonorm.metrics.base:LogLoss", "mean of −log p of the true class"),
    "calibration": Entry("protonorm.metrics.base:Calibration", "distance of confidence and accuracy"),
}


@cache
def metrics() -> dict[str, Metric]:
    """Return the registered metrics by name."""
    return {name: entry.load()() for name, entry in METRICS.items()}
