"""Aggregation of the clients' counts into the values and arrays of a round's record, client by client."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.core.task import Counts
from protonorm.core.text import digits
from protonorm.core.types import MAX_INT
from protonorm.geometry.prototypes import margins, spread
from protonorm.geometry.temperature import SHARPEST, SMALLEST
from protonorm.metrics import metrics
from protonorm.metrics.base import ROUNDED, Count, Integers, Metric, Numbers, mean_of_known
from protonorm.metrics.base import Counts as NamedCounts
from protonorm.runs.arrays import accuracy_of
from protonorm.runs.schema import Accuracy, Distances
from protonorm.tensors import Tensors, strip_prefix


class Tally:
    """Counts of a round over a part of the samples: totals by client and by class; by both on request alone.

    A client may report totals without classes; it then enters the totals by client but not those by class.
    """

    def __init__(
        self, part: str, rules: Sequence[str], clients: int, num_classes: int, *, by_cell: bool = False
    ) -> None:
        self.part, self._cells = part, Cells(num_classes) if by_cell else None
        self._clients, self._num_classes = clients, num_classes
        self._ids: list[int] = []
        self._support: list[int] = []
        self._unseen = [0, 0]  # samples whose class has no local prototype, of how many
        self._totals: list[bool] = []  # which clients report totals only
        self._by_class = np.zeros(num_classes, np.int64)  # (K,) samples
        self._rules: dict[str, RuleTally | None] = dict.fromkeys(rules)

    @property
    def clients(self) -> int:
        """Number of clients evaluated."""
        return len(self._ids)

    def add(self, counts: Counts) -> None:
        """Add a client's checked counts; under a rule that the client lacks, all its samples count as wrong."""
        values = {name: value.numpy() for name, value in strip_prefix(counts.counts, self.part).items()}
        if self._cells is not None:
            self._cells.add(self._rules, values)
        for rule, tally in self._rules.items():
            if tally is None and f"correct.{rule}" in values:
                unmeasured = [totals or not size for totals, size in zip(self._totals, self._support, strict=True)]
                tally = self._rules[rule] = RuleTally(rule, self._num_classes, unmeasured)
            if tally is not None:
                tally.add(values)
        self._ids.append(counts.id)
        self._support.append(int(values["support"].sum()))
        self._totals.append(not values["support"].ndim)
        if not self._totals[-1]:
            self._unseen = [self._unseen[0] + int(values["unseen"]), self._unseen[1] + self._support[-1]]
            self._by_class += values["support"]

    def check(self, counts: Counts) -> None:
        """Raise if counts are missing, have the wrong type or shape, or exceed what the samples allow."""
        tensors = strip_prefix(counts.counts, self.part)
        if "support" in tensors and not tensors["support"].ndim:
            self._check_totals(tensors)
            return
        kinds = countable()
        expected = {"support": kinds["correct"], "unseen": Count((), "int64")}
        expected |= {name: kinds[kind] for name in tensors if (kind := name.partition(".")[0]) in kinds}
        for name, count in expected.items():
            value, dtype, shape = tensors.get(name), getattr(torch, count.dtype), count.sizes(self._num_classes)
            if value is None or value.dtype != dtype or value.shape != shape or not bool((value >= 0).all()):
                unit = "whole numbers" if dtype is torch.int64 else "numbers"
                raise ValueError(f"Its counts have no {self.part}.{name} of {shape} {unit}.")
        if bool((tensors["support"] > MAX_INT).any()):
            raise ValueError(f"Its counts have more than {MAX_INT} samples of a class.")
        if tensors["unseen"] > tensors["support"].sum():
            raise ValueError("Its counts have more samples of classes without a prototype than samples.")
        for rule in sorted({rule for name in expected if (rule := name.partition(".")[2])}):
            _check_rule(tensors, rule)

    def _check_totals(self, tensors: Tensors) -> None:
        """Check the counts of a client that reports totals only: samples and correct predictions, each an integer."""
        for name, value in tensors.items():
            if name != "support" and not name.startswith("correct."):
                raise ValueError(f"Its counts have {self.part}.{name} beside totals.")
            if value.dtype != torch.int64 or value.ndim or value < 0:
                raise ValueError(f"Its counts have no {self.part}.{name} that is a whole number.")
            if value > tensors["support"]:
                raise ValueError(f"Its counts have more right answers than samples in {name}.")
            if value > MAX_INT:
                raise ValueError(f"Its counts have more than {MAX_INT} samples.")

    def accuracies(self) -> dict[str, Accuracy | None]:
        """Return the accuracy of each rule; None for rules without scores yet, empty if no client was evaluated."""
        support, order = np.array(self._support, np.int64), np.argsort(self._ids)
        tallies = self._rules if self._ids else {}
        return {rule: None if tally is None else tally.accuracy(support, order) for rule, tally in tallies.items()}

    def unseen(self) -> float | None:
        """Return the share of samples whose class has no local prototype; None without samples."""
        unseen, total = self._unseen
        return digits(unseen / total) if total else None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the totals for the record; `ids` only if some clients were not evaluated."""
        if not self._ids:
            return {}
        order = np.argsort(self._ids)  # a client that was lost at first is counted late
        arrays: dict[str, NDArray[Any]] = {
            f"{self.part}.support.clients": np.array(self._support)[order],
            f"{self.part}.support.classes": self._by_class,
        }
        if len(self._ids) < self._clients:
            arrays["ids"] = np.array(self._ids)[order]
        for tally in self._rules.values():
            arrays |= {f"{self.part}.{name}": array for name, array in tally.arrays(order).items()} if tally else {}
        if self._cells is not None:
            arrays |= {f"{self.part}.{name}": array for name, array in self._cells.arrays(order).items()}
        return arrays


class Cells:
    """Samples and right answers of a round by client and class together."""

    def __init__(self, num_classes: int) -> None:
        self._none = np.zeros(num_classes, np.int64)
        self._rows: list[dict[str, Integers]] = []  # by client: support, and correct under its rules, (K,) each

    def add(self, rules: Iterable[str], values: Mapping[str, NDArray[Any]]) -> None:
        """Add a client's counts; of totals there is nothing to add."""
        names = {"support": "support.cells"} | {f"correct.{rule}": f"correct.cells.{rule}" for rule in rules}
        self._rows.append({cell: values[name] for name, cell in names.items() if name in values and values[name].ndim})

    def arrays(self, order: Integers) -> dict[str, NDArray[Any]]:
        """Return the arrays (M, K)."""
        names = dict.fromkeys(name for row in self._rows for name in row)
        return {name: np.array([self._rows[client].get(name, self._none) for client in order]) for name in names}


class RuleTally:
    """Counts of a round under a rule."""

    def __init__(self, rule: str, num_classes: int, silent: Sequence[bool]) -> None:
        """Initialise the counts after clients that lack the rule, whose samples count as wrong.

        Those marked in `before` have no measures by class: they have no samples, or reported totals only.
        """
        self._rule = rule
        self._correct = [0] * len(silent)
        self._by_class = np.zeros((2, num_classes), np.int64)  # correct predictions, predictions
        self._sharpness: list[float] = [math.nan] * len(silent)
        self._values: dict[str, list[float]] = {
            name: [math.nan if unmeasured or metric.counts else 0.0 for unmeasured in silent]
            for name, metric in metrics().items()
        }
        self._counts: list[NamedCounts] = [{}] * len(silent)  # of the metrics whose sums are needed, by client
        self._classes: dict[str, dict[int, Numbers]] = {}  # by metric and position: a client's values by class (K,)

    def add(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Add a client's counts; totals alone carry no information on classes and probabilities."""
        rule, support = self._rule, values["support"]
        declared = (name for metric in metrics().values() for name in metric.counts)
        counts = {name: values[f"{name}.{rule}"] for name in declared if f"{name}.{rule}" in values}
        summed = {name for metric in metrics().values() if not metric.by_class for name in metric.counts}
        self._counts.append({name: count for name, count in counts.items() if name in summed})
        self._sharpness.append(float(values.get(f"sharpness.{rule}", math.nan)))
        if not support.ndim:
            self._correct.append(int(values.get(f"correct.{rule}", 0)))
            for series in self._values.values():
                series.append(math.nan)
            return
        none = np.zeros(self._by_class.shape[1], np.int64)
        basic = {name: values.get(f"{name}.{rule}", none) for name in ("correct", "predicted")}
        self._correct.append(int(basic["correct"].sum()))
        self._by_class += np.stack([basic["correct"], basic["predicted"]])
        for name, metric in metrics().items():
            complete, client = metric.counts.keys() <= counts.keys(), len(self._correct) - 1
            if complete and metric.by_class:
                self._classes.setdefault(name, {})[client] = metric.of_classes(counts)
            self._values[name].append(metric.of_client(basic | counts, support) if complete else math.nan)

    def accuracy(self, support: Integers, order: Integers) -> Accuracy | None:
        """Compute the rule's accuracy; sums follow the order of the clients, so that results are bit-identical."""
        metric_values = {
            name: self._finish(name, metric, support, order)
            for name, metric in metrics().items()
            if not metric.optional or name in self._classes
        }
        return accuracy_of(np.array(self._correct, np.int64), support, **metric_values)

    def _finish(self, name: str, metric: Metric, support: Integers, order: Integers) -> float | None:
        if metric.by_class:
            return metric.finish(np.array(self._values[name])[order], {}, 0)
        counted = [i for i in order if metric.counts.keys() <= self._counts[i].keys()] if metric.counts else order
        if not len(counted):
            return None
        sums = {count: np.sum([self._counts[i][count] for i in counted], axis=0) for count in metric.counts}
        return metric.finish(np.array(self._values[name])[order], sums, int(support[counted].sum()))

    def arrays(self, order: Integers) -> dict[str, NDArray[Any]]:
        """Return the totals by client and by class; a metric only if some client has its counts."""
        arrays: dict[str, NDArray[Any]] = {
            f"correct.clients.{self._rule}": np.array(self._correct)[order],
            f"correct.classes.{self._rule}": self._by_class[0],
            f"predicted.classes.{self._rule}": self._by_class[1],
        }
        for name, metric in metrics().items():
            by_class = self._classes.get(name, {})
            if by_class:
                columns = np.array([by_class[client] for client in order if client in by_class]).T  # (K, clients)
                means = [mean_of_known(values) for values in columns]
                arrays[f"{name}.classes.{self._rule}"] = np.array(means, np.float32)
            if by_class or not metric.counts or any(metric.counts.keys() <= counts.keys() for counts in self._counts):
                arrays[f"{name}.clients.{self._rule}"] = np.array(self._values[name], np.float32)[order]
        if not np.isnan(sharpness := np.array(self._sharpness, np.float32)[order]).all():
            arrays[f"sharpness.clients.{self._rule}"] = sharpness
        return arrays


def countable() -> dict[str, Count]:
    """Return all counts that a rule may have, by name."""
    by_class = Count(("K",), "int64")
    declared = {name: count for metric in metrics().values() for name, count in metric.counts.items()}
    return {"correct": by_class, "predicted": by_class, "sharpness": Count(), **declared}


def _check_rule(tensors: Tensors, rule: str) -> None:
    """Raise if a rule's counts are impossible for the samples."""
    support, samples = tensors["support"], tensors["support"].sum()
    counts = {kind: tensors[name] for kind in countable() if (name := f"{kind}.{rule}") in tensors}
    together = [{"correct", "predicted"}, {n for m in metrics().values() if m.probabilities for n in m.counts}]
    if any(names & counts.keys() not in (set(), names) for names in together):
        raise ValueError(f"Its counts have one of two that belong together under {rule}.")
    if "correct" in counts:
        if bool((counts["correct"] > support).any()):
            raise ValueError(f"Its counts have more right answers than samples in correct.{rule}.")
        if bool((counts["predicted"] > samples).any()) or counts["predicted"].sum() != samples:
            raise ValueError(f"Its counts do not have an answer for each sample in predicted.{rule}.")
        if bool((counts["correct"] > counts["predicted"]).any()):
            raise ValueError(f"Its counts have more right answers than answers in correct.{rule}.")
    for metric in metrics().values():
        if metric.counts and metric.counts.keys() <= counts.keys():
            metric.check(counts, support, rule)
    if "sharpness" in counts and counts["sharpness"] > ROUNDED * SHARPEST / SMALLEST:
        raise ValueError(f"Its counts have a sharpness.{rule} that is larger than scores can make it.")


def mean_metrics(reported: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Compute the mean of each metric over the clients that reported it."""
    return {name: digits(sum(values) / len(values)) for name, values in reported.items()}


def prototype_shape(message: Tensors) -> tuple[Distances | None, dict[str, NDArray[Any]]]:
    """Compute the distances between published prototypes, and each class's margin for the record's arrays."""
    vectors, classes = message.get("prototypes"), message.get("classes")
    if vectors is None or classes is None or vectors.ndim != 2 or not 2 <= len(vectors) == len(classes):
        return None, {}  # a user's own method may use these names for other tensors
    smallest, mean, largest = map(digits, spread(vectors))
    arrays = {"margins": margins(vectors).float().numpy(), "margins.classes": classes.numpy()}
    return Distances(min=smallest, mean=mean, max=largest), arrays
