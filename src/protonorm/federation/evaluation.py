"""Fold what clients counted into the numbers and arrays of a round's record, one client after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.core.task import Counts
from protonorm.geometry.prototypes import margins, spread
from protonorm.runs.accuracy import accuracy_of, digits
from protonorm.runs.schema import Accuracy, Distances
from protonorm.tensors import Tensors

Integers = NDArray[np.int64]


class Tally:
    """Counts of a round: totals by client and by class, never by both."""

    def __init__(self, rules: Sequence[str], clients: int, num_classes: int) -> None:
        self._clients, self._num_classes = clients, num_classes
        self._ids: list[int] = []
        self._support: list[int] = []
        self._unseen = 0
        self._by_class = np.zeros(num_classes, np.int64)  # (K,) samples
        self._correct: dict[str, tuple[list[int], Integers] | None] = dict.fromkeys(rules)  # by client, by class

    def add(self, counts: Counts) -> None:
        """Take in one client's counts; under a rule that it lacks it counts as wrong. Refuse what counts nothing."""
        self._check(counts)
        support = counts.counts["support"].numpy()
        self._ids.append(counts.id)
        self._support.append(int(support.sum()))
        self._unseen += int(counts.counts["unseen"])
        self._by_class += support
        for rule in self._correct:
            found = counts.counts.get(f"correct.{rule}")
            if found is None and self._correct[rule] is None:
                continue
            before = [0] * (len(self._ids) - 1), np.zeros(self._num_classes, np.int64)
            clients, classes = self._correct[rule] or before
            clients.append(0 if found is None else int(found.sum()))
            self._correct[rule] = clients, classes if found is None else classes + found.numpy()

    def _check(self, counts: Counts) -> None:
        """Refuse, with a sentence, counts that are missing, of another kind, or more than there are samples."""
        row, held = (self._num_classes,), counts.counts
        wanted = {"support": row, "unseen": ()} | {name: row for name in held if name.startswith("correct.")}
        for name, shape in wanted.items():
            found = held.get(name)
            if found is None or found.dtype != torch.int64 or found.shape != shape or bool((found < 0).any()):
                raise ValueError(f"The counts of client {counts.id} have no {name} of {shape} whole numbers.")
            if name.startswith("correct.") and bool((found > held["support"]).any()):
                raise ValueError(f"The counts of client {counts.id} have more right answers than samples in {name}.")

    def accuracies(self) -> dict[str, Accuracy | None]:
        """Condense each rule; None for one that does not exist yet. Nothing if nobody was evaluated."""
        support = np.array(self._support, np.int64)
        return {
            rule: None if found is None else accuracy_of(np.array(found[0], np.int64), support)
            for rule, found in self._correct.items()
            if self._ids
        }

    def unseen(self) -> float | None:
        """Give the share of samples whose class has no local prototype; None without samples."""
        whole = sum(self._support)
        return digits(self._unseen / whole) if whole else None

    def arrays(self) -> dict[str, Integers]:
        """Give the totals for the record; `ids` only if not everybody was evaluated."""
        if not self._ids:
            return {}
        order = np.argsort(self._ids)  # a client that was lost at first comes late
        found = {"support.clients": np.array(self._support)[order], "support.classes": self._by_class}
        if len(self._ids) < self._clients:
            found["ids"] = np.array(self._ids)[order]
        for rule, held in self._correct.items():
            if held is not None:
                found |= {f"correct.clients.{rule}": np.array(held[0])[order], f"correct.classes.{rule}": held[1]}
        return found


def mean_metrics(reported: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each metric over the clients that reported it."""
    names = dict.fromkeys(name for one in reported for name in one)
    found = {name: [one[name] for one in reported if name in one] for name in names}
    return {name: digits(sum(values) / len(values)) for name, values in found.items()}


def prototype_shape(message: Tensors) -> tuple[Distances | None, dict[str, NDArray[Any]]]:
    """Describe published prototypes: their distances, and each class's margin for the record's arrays."""
    if len(message.get("prototypes", ())) < 2:
        return None, {}
    vectors = message["prototypes"]
    least, mean, greatest = map(digits, spread(vectors))
    arrays = {"margins": margins(vectors).float().numpy(), "margins.classes": message["classes"].numpy()}
    return Distances(min=least, mean=mean, max=greatest), arrays
