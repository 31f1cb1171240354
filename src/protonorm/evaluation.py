"""How good the clients are: counts over their test parts, and the numbers that tables and curves are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.core import Algorithm, Client
from protonorm.geometry.prototypes import distances, margins
from protonorm.tensors import Tensors

Accuracy = dict[str, Any]  # pooled, mean, worst, clients, classes

WORST = 0.1  # the share of clients whose mean accuracy is `worst`


@torch.no_grad()
def evaluate(algorithm: Algorithm, client: Client, state: Tensors, message: Tensors) -> Tensors:
    """Count right answers per class and rule in one pass over the test part: support (K,), correct.<rule> (K,)."""
    client.load(state).eval()
    counts: Tensors = {"support": torch.zeros(client.num_classes, dtype=torch.int64, device=client.device)}
    for x, y in client.test.sweep(device=client.device):
        with client.computing():
            scores = algorithm.scores(client, state, message, x)
        counts["support"].index_add_(0, y, torch.ones_like(y))
        for rule, score in scores.items():
            found = counts.setdefault(f"correct.{rule}", torch.zeros_like(counts["support"]))
            found.index_add_(0, y, (score.argmax(1) == y).long())
    return {name: count.cpu() for name, count in counts.items()}


def unseen(client: Client, state: Tensors) -> int:
    """Count the test samples whose class has no local prototype."""
    counts = client.test.class_counts(client.num_classes)
    held = torch.ones(client.num_classes, dtype=torch.bool)
    if "prototypes" in state:
        held[:] = False
        held[state["classes"]] = True
    return int(counts[~held].sum())


def accuracy(correct: NDArray[np.int64], support: NDArray[np.int64]) -> Accuracy | None:
    """Summarise one rule: `correct` and `support` are (M, K) counts; None if nobody was tested."""
    tested = support.sum(1)
    if not tested.sum():
        return None
    clients = [_ratio(right, all_) for right, all_ in zip(correct.sum(1), tested, strict=True)]
    known = sorted(value for value in clients if value is not None)
    worst = known[: math.ceil(WORST * len(known))]
    return {
        "pooled": _ratio(correct.sum(), tested.sum()),
        "mean": digits(sum(known) / len(known)),
        "worst": digits(sum(worst) / len(worst)),
        "clients": clients,
        "classes": [_ratio(right, all_) for right, all_ in zip(correct.sum(0), support.sum(0), strict=True)],
    }


def by_rule(rules: Sequence[str], evaluations: Mapping[int, Tensors]) -> dict[str, Accuracy | None]:
    """Summarise what all clients counted, rule by rule; None for a rule that does not exist yet.

    A client that lacks a rule (it has no local prototypes yet, say) counts as wrong under it.
    """
    ids = sorted(evaluations)
    support = np.stack([evaluations[id]["support"].numpy() for id in ids])  # (M, K)
    result: dict[str, Accuracy | None] = {}
    for rule in rules:
        name = f"correct.{rule}"
        if any(name in evaluations[id] for id in ids):
            none = torch.zeros(support.shape[1], dtype=torch.int64)
            correct = np.stack([evaluations[id].get(name, none).numpy() for id in ids])
            result[rule] = accuracy(correct, support)
        else:
            result[rule] = None
    return result


def majority(train: NDArray[np.int64], test: NDArray[np.int64]) -> Accuracy | None:
    """Predict each client's most frequent training class: (M, K) class counts of both parts."""
    chosen = train.argmax(1)
    correct = np.zeros_like(test)
    rows = np.arange(len(test))
    correct[rows, chosen] = test[rows, chosen]
    return accuracy(correct, test)


def prototype_metrics(message: Tensors) -> dict[str, Any]:
    """Describe published prototypes: distances between them, and each class's margin."""
    if len(message.get("prototypes", ())) < 2:
        return {}
    apart = distances(message["prototypes"].double())
    return {
        "distance": {"min": digits(apart.min()), "mean": digits(apart.mean()), "max": digits(apart.max())},
        "margins": [digits(value) for value in margins(message["prototypes"].double())],  # in the order of `classes`
        "classes": message["classes"].tolist(),
    }


def digits(value: float | Tensor) -> float:
    """Keep six significant digits: enough for every table, and short in a file."""
    return float(f"{float(value):.6g}")


def _ratio(part: int, whole: int) -> float | None:
    return digits(part / whole) if whole else None
