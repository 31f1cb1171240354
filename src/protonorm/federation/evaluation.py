"""Fold what clients counted into the numbers and arrays of a round's record, one client after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.core.digits import digits
from protonorm.core.task import Counts
from protonorm.core.types import LARGEST
from protonorm.federation.client import ANSWERS, BINS, LEAST_LOG
from protonorm.federation.experts import SHARPEST, SMALLEST
from protonorm.geometry.prototypes import margins, spread
from protonorm.runs.accuracy import (
    Integers,
    Numbers,
    accuracy_of,
    balanced_accuracy,
    calibration_error,
    macro_f1,
)
from protonorm.runs.schema import Accuracy, Distances
from protonorm.tensors import Tensors, under

ROUNDED = 1 + 1e-6  # what rounding may add to a sum of fractions


class Tally:
    """Counts of a round over one part of the samples: totals by client and by class, never by both.

    A client may tell its totals alone, without classes: then it counts among the clients, and not among the classes.
    """

    def __init__(self, part: str, rules: Sequence[str], clients: int, num_classes: int) -> None:
        self.part = part
        self._clients, self._num_classes = clients, num_classes
        self._ids: list[int] = []
        self._support: list[int] = []
        self._unseen = [0, 0]  # samples whose class has no local prototype, of how many
        self._totals: list[bool] = []  # which clients tell totals alone
        self._by_class = np.zeros(num_classes, np.int64)  # (K,) samples
        self._rules: dict[str, RuleTally | None] = dict.fromkeys(rules)

    @property
    def clients(self) -> int:
        """Count the clients that were evaluated."""
        return len(self._ids)

    def add(self, counts: Counts) -> None:
        """Take in one client's counts, which `check` has found good; under a rule that it lacks it counts as wrong."""
        found = {name: value.numpy() for name, value in under(counts.counts, self.part).items()}
        for rule, held in self._rules.items():
            if held is None and f"correct.{rule}" in found:
                silent = [totals or not size for totals, size in zip(self._totals, self._support, strict=True)]
                held = self._rules[rule] = RuleTally(rule, self._num_classes, silent)
            if held is not None:
                held.add(found)
        self._ids.append(counts.id)
        self._support.append(int(found["support"].sum()))
        self._totals.append(not found["support"].ndim)
        if not self._totals[-1]:
            self._unseen = [self._unseen[0] + int(found["unseen"]), self._unseen[1] + self._support[-1]]
            self._by_class += found["support"]

    def check(self, counts: Counts) -> None:
        """Refuse, with a sentence, counts that are missing, of another kind, or more than samples can give."""
        held = under(counts.counts, self.part)
        if "support" in held and not held["support"].ndim:
            self._check_totals(held)
            return
        whole, fractions = (torch.int64, (self._num_classes,)), torch.float64
        kinds = {"correct": whole, "predicted": whole, "surprise": (fractions, ()), "bins": (fractions, (3, BINS))}
        kinds["sharpness"] = (fractions, ())
        wanted = {"support": whole, "unseen": (torch.int64, ())}
        wanted |= {name: kinds[kind] for name in held if (kind := name.partition(".")[0]) in kinds}
        for name, (dtype, shape) in wanted.items():
            found = held.get(name)
            if found is None or found.dtype != dtype or found.shape != shape or not bool((found >= 0).all()):
                unit = "whole numbers" if dtype is torch.int64 else "numbers"
                raise ValueError(f"Its counts have no {self.part}.{name} of {shape} {unit}.")
        if bool((held["support"] > LARGEST).any()):
            raise ValueError(f"Its counts have more than {LARGEST} samples of a class.")
        if held["unseen"] > held["support"].sum():
            raise ValueError("Its counts have more samples of classes without a prototype than samples.")
        for rule in sorted({rule for name in wanted if (rule := name.partition(".")[2])}):
            _check_rule(held, rule)

    def _check_totals(self, held: Tensors) -> None:
        """Check the counts of a client that tells totals alone: samples and right answers, each a whole number."""
        for name, found in held.items():
            if name != "support" and not name.startswith("correct."):
                raise ValueError(f"Its counts have {self.part}.{name} beside totals.")
            if found.dtype != torch.int64 or found.ndim or found < 0:
                raise ValueError(f"Its counts have no {self.part}.{name} that is a whole number.")
            if found > held["support"]:
                raise ValueError(f"Its counts have more right answers than samples in {name}.")
            if found > LARGEST:
                raise ValueError(f"Its counts have more than {LARGEST} samples.")

    def accuracies(self) -> dict[str, Accuracy | None]:
        """Condense each rule; None for one that does not exist yet. Nothing if nobody was evaluated."""
        support, order = np.array(self._support, np.int64), np.argsort(self._ids)
        return {
            rule: None if held is None else held.accuracy(support, order)
            for rule, held in self._rules.items()
            if self._ids
        }

    def unseen(self) -> float | None:
        """Give the share of samples whose class has no local prototype; None without samples."""
        unseen, whole = self._unseen
        return digits(unseen / whole) if whole else None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the totals for the record; `ids` only if not everybody was evaluated."""
        if not self._ids:
            return {}
        order = np.argsort(self._ids)  # a client that was lost at first comes late
        found: dict[str, NDArray[Any]] = {
            f"{self.part}.support.clients": np.array(self._support)[order],
            f"{self.part}.support.classes": self._by_class,
        }
        if len(self._ids) < self._clients:
            found["ids"] = np.array(self._ids)[order]
        for held in self._rules.values():
            found |= {f"{self.part}.{name}": one for name, one in held.arrays(order).items()} if held else {}
        return found


class RuleTally:
    """Counts of a round under one rule."""

    def __init__(self, rule: str, num_classes: int, before: Sequence[bool]) -> None:
        """Begin after clients that do not have the rule, and count as wrong.

        Some of them have no samples, or tell totals alone: these have no measures by class.
        """
        self._rule = rule
        self._correct = [0] * len(before)
        self._balanced: list[float] = [math.nan if silent else 0.0 for silent in before]
        self._f1 = list(self._balanced)
        self._surprise: list[float] = [0.0] * len(before)
        self._by_class = np.zeros((2, num_classes), np.int64)  # right answers, predictions
        self._bins: list[Numbers | None] = [None] * len(before)
        self._sharpness: list[float] = [math.nan] * len(before)

    def add(self, found: Mapping[str, NDArray[Any]]) -> None:
        """Take in one client's counts; totals alone say nothing of classes and probabilities."""
        self._surprise.append(float(found.get(f"surprise.{self._rule}", 0.0)))
        self._bins.append(found.get(f"bins.{self._rule}"))  # a client without samples has none
        self._sharpness.append(float(found.get(f"sharpness.{self._rule}", math.nan)))
        if not found["support"].ndim:
            self._correct.append(int(found.get(f"correct.{self._rule}", 0)))
            self._balanced.append(math.nan)
            self._f1.append(math.nan)
            return
        none = np.zeros(self._by_class.shape[1], np.int64)
        correct, predicted = (found.get(f"{name}.{self._rule}", none) for name in ("correct", "predicted"))
        self._correct.append(int(correct.sum()))
        self._balanced.append(_or_nan(balanced_accuracy(correct, found["support"])))
        self._f1.append(_or_nan(macro_f1(correct, found["support"], predicted)))
        self._by_class += np.stack([correct, predicted])

    def accuracy(self, support: Integers, order: Integers) -> Accuracy | None:
        """Condense the rule; sums of fractions are taken in the order of the clients, so that bits agree."""
        surprise, bins = np.array(self._surprise)[order], [one for i in order if (one := self._bins[i]) is not None]
        counted = sum(float(one[0].sum()) for one in bins)  # samples of those who have probabilities
        return accuracy_of(
            np.array(self._correct, np.int64),
            support,
            balanced=_mean(np.array(self._balanced)[order]),
            f1=_mean(np.array(self._f1)[order]),
            log_loss=float(surprise.sum()) / counted if counted else None,
            calibration=calibration_error(np.sum(bins, axis=0)) if bins else None,
        )

    def arrays(self, order: Integers) -> dict[str, NDArray[Any]]:
        """Give the totals by client and by class; log loss and calibration error if anybody has probabilities."""
        found: dict[str, NDArray[Any]] = {
            f"correct.clients.{self._rule}": np.array(self._correct)[order],
            f"balanced.clients.{self._rule}": np.array(self._balanced, np.float32)[order],
            f"f1.clients.{self._rule}": np.array(self._f1, np.float32)[order],
            f"correct.classes.{self._rule}": self._by_class[0],
            f"predicted.classes.{self._rule}": self._by_class[1],
        }
        if any(one is not None for one in self._bins):
            pairs = [(self._surprise[i], self._bins[i]) for i in order]
            loss = [math.nan if bins is None else _ratio(surprise, bins[0].sum()) for surprise, bins in pairs]
            error = [math.nan if bins is None else _or_nan(calibration_error(bins)) for _, bins in pairs]
            found[f"log_loss.clients.{self._rule}"] = np.array(loss, np.float32)
            found[f"calibration.clients.{self._rule}"] = np.array(error, np.float32)
        if not np.isnan(sharpness := np.array(self._sharpness, np.float32)[order]).all():
            found[f"sharpness.clients.{self._rule}"] = sharpness
        return found


def _check_rule(held: Tensors, rule: str) -> None:
    """Refuse counts under a rule that no answers to the samples can have."""
    support, samples = held["support"], held["support"].sum()
    found = {kind: held[name] for kind in ANSWERS if (name := f"{kind}.{rule}") in held}
    if ("correct" in found) != ("predicted" in found) or ("surprise" in found) != ("bins" in found):
        raise ValueError(f"Its counts have one of two that belong together under {rule}.")
    if "correct" in found:
        if bool((found["correct"] > support).any()):
            raise ValueError(f"Its counts have more right answers than samples in correct.{rule}.")
        if bool((found["predicted"] > samples).any()) or found["predicted"].sum() != samples:
            raise ValueError(f"Its counts do not have an answer for each sample in predicted.{rule}.")
        if bool((found["correct"] > found["predicted"]).any()):
            raise ValueError(f"Its counts have more right answers than answers in correct.{rule}.")
    if "bins" in found:
        counted, confidence, right = found["bins"]
        if counted.sum() != samples or bool((confidence > ROUNDED * counted).any()) or bool((right > counted).any()):
            raise ValueError(f"Its counts have bins.{rule} that are not those of its samples.")
        if found["surprise"] > -ROUNDED * LEAST_LOG * samples:
            raise ValueError(f"Its counts have a surprise.{rule} that is larger than probabilities can make it.")
    if "sharpness" in found and found["sharpness"] > ROUNDED * SHARPEST / SMALLEST:
        raise ValueError(f"Its counts have a sharpness.{rule} that is larger than scores can make it.")


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Numbers) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def mean_metrics(reported: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Average each metric over the clients that reported it."""
    return {name: digits(sum(values) / len(values)) for name, values in reported.items()}


def prototype_shape(message: Tensors) -> tuple[Distances | None, dict[str, NDArray[Any]]]:
    """Describe published prototypes: their distances, and each class's margin for the record's arrays."""
    vectors, classes = message.get("prototypes"), message.get("classes")
    if vectors is None or classes is None or vectors.ndim != 2 or not 2 <= len(vectors) == len(classes):
        return None, {}  # those of a user's own method may be something else
    least, mean, greatest = map(digits, spread(vectors))
    arrays = {"margins": margins(vectors).float().numpy(), "margins.classes": classes.numpy()}
    return Distances(min=least, mean=mean, max=greatest), arrays
