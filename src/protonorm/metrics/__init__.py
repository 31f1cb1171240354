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
    "auroc": Entry("protonorm.metrics.ranking:Auroc", "area under the ROC curve"),
    "auprc": Entry("protonorm.metrics.ranking:Auprc", "area under the precision-recall curve"),
    "sensitivity90": Entry("protonorm.metrics.ranking:Sensitivity90", "sensitivity at 90 % specificity"),
    "sensitivity95": Entry("protonorm.metrics.ranking:Sensitivity95", "sensitivity at 95 % specificity"),
    "sensitivity99": Entry("protonorm.metrics.ranking:Sensitivity99", "sensitivity at 99 % specificity"),
}


@cache
def metrics() -> dict[str, Metric]:
    """Return the registered metrics by name."""
    return {name: entry.load()() for name, entry in METRICS.items()}


def counters(kind: str = "ranking") -> list[Metric]:
    """Return a metric for each declared set of counts that clients take by the setting `metrics`."""
    chosen = [metric for metric in metrics().values() if metric.counts and (kind == "ranking" or not metric.optional)]
    return list({tuple(metric.counts): metric for metric in chosen}.values())
