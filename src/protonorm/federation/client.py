"""What happens at a client: it begins, it trains, it is evaluated; the same in simulation and on a real network."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from protonorm.core.algorithm import Algorithm
from protonorm.core.node import Client
from protonorm.core.protocols import Site
from protonorm.core.randomness import seeded
from protonorm.core.returned import checked_scores, checked_state, checked_step
from protonorm.core.samples import Samples
from protonorm.core.task import Counts, Order, Reply, Task
from protonorm.federation.experts import JOINT, Sharpness, fit_experts, joint_scores
from protonorm.geometry.prototypes import vectors_by_class
from protonorm.tensors import Tensors, prefixed

PROBABLE = ("logits", "received", "shared", "coarse", JOINT)  # rules whose scores are made to be probabilities
ANSWERS = ("correct", "predicted", "surprise", "bins", "sharpness")  # what may be counted under a rule
VALIDATION = "validation"
BINS = 15  # of confidence, for the calibration error
LEAST_LOG = math.log(1e-12)  # a probability below is counted as this

Batch = tuple[dict[str, Tensor], Tensor]  # scores (B, K) by rule, labels (B,)


def first_state(task: Task, site: Site) -> Tensors:
    """Let a client begin: what it remembers before its first round."""
    client = site.fresh_client()
    with seeded(task.seed, 0, site.id, "state"):
        return checked_state(task.algorithm, "init_client", task.algorithm.init_client(client))


def train_step(task: Task, site: Site, order: Order, state: Tensors, message: Tensors) -> tuple[Tensors, Reply]:
    """Let a client train: its new state, and its reply to the server's message."""
    start = time.perf_counter()
    client = site.client(order.round)
    with seeded(task.seed, order.round, order.id):
        found = task.algorithm.local_update(client, state, message)
    step = checked_step(task.algorithm, "local_update", found)
    return step.state, Reply(order.id, step.message, dict(step.metrics), time.perf_counter() - start)


def evaluate_step(
    task: Task, site: Site, order: Order, state: Tensors, message: Tensors, parts: Sequence[str]
) -> Counts:
    """Let a client count its right answers over parts of its samples, with the server's newest message.

    Where model parts are shared, the model is measured as trained (`logits`) and as received (`received`); where there
    are several rules, also by all of them (`joint`), fitted on the validation part. The counts of a part have its name
    before theirs.
    """
    algorithm, client = task.algorithm, site.client(order.round)
    found: Tensors = {}
    sharpness: Sharpness = {}
    with seeded(task.seed, order.round, order.id, "evaluate"), torch.no_grad():
        received = algorithm.receive(client, state, message)
        for part in sorted(parts, key=lambda one: one != VALIDATION):  # it says how the others are answered
            samples = client.part(part)
            batches: Iterable[Batch] = score_samples(algorithm, client, samples, state, message, received)
            if JOINT in algorithm.rules and part == VALIDATION:
                batches, sharpness = _fitted(algorithm, batches)
            elif JOINT in algorithm.rules:
                batches = _joined(algorithm, batches, sharpness)
            counts = _count(batches, client)
            if part == VALIDATION:
                counts |= {f"sharpness.{rule}": torch.tensor(x, dtype=torch.float64) for rule, x in sharpness.items()}
            counts["unseen"] = torch.tensor(count_unseen(client, samples, state))
            found |= prefixed(part, counts)
    return Counts(order.id, found)


@torch.no_grad()
def count_answers(algorithm: Algorithm, client: Client, samples: Samples, state: Tensors, message: Tensors) -> Tensors:
    """Count answers by class and rule in one pass over samples.

    support (K,), and for each rule correct.<rule> (K,), predicted.<rule> (K,); for rules with probabilities also
    surprise.<rule> (), the sum of −log p of the true class, and bins.<rule> (3, 15): samples, their confidence and
    their right answers, by confidence.
    """
    return _count(score_samples(algorithm, client, samples, state, message, None), client)


def score_samples(
    algorithm: Algorithm, client: Client, samples: Samples, state: Tensors, message: Tensors, received: Tensors | None
) -> Iterator[Batch]:
    """Score samples, batch by batch: (B, K) by rule, and their labels (B,)."""
    client.load(state).eval()
    for x, y in samples.sweep(device=client.device):
        with client.autocast():
            scores = checked_scores(
                algorithm, algorithm.scores(client, state, message, x), (len(y), client.num_classes)
            )
        if received is not None:
            client.load(received).eval()
            with client.autocast():
                arrived = algorithm.scores(client, received, message, x)
            scores |= {"received": arrived["logits"]} if "logits" in arrived else {}
            client.load(state).eval()
        yield scores, y


def experts_of(algorithm: Algorithm, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Choose the scores of the rules that `joint` adds up: all that the method reports, as far as they exist yet."""
    return {rule: scores[rule] for rule in algorithm.rules if rule in scores and rule != JOINT}


def _fitted(algorithm: Algorithm, batches: Iterable[Batch]) -> tuple[list[Batch], Sharpness]:
    """Fit `joint` to scores of validation samples; they come back as one batch that has it, and how sharp rules are."""
    held = [({rule: one.cpu() for rule, one in scores.items()}, y.cpu()) for scores, y in batches]
    if not held:
        return [], {}
    scores = {rule: torch.cat([one[rule] for one, _ in held]) for rule in held[0][0]}  # (n, K)
    y = torch.cat([labels for _, labels in held])
    sharpness, crossed = fit_experts(experts_of(algorithm, scores), y)
    return [(scores | {JOINT: crossed}, y)], sharpness


def _joined(algorithm: Algorithm, batches: Iterable[Batch], sharpness: Sharpness) -> Iterator[Batch]:
    """Add the scores of `joint` to batches."""
    for scores, y in batches:
        yield scores | {JOINT: joint_scores(experts_of(algorithm, scores), sharpness)}, y


def _count(batches: Iterable[Batch], client: Client) -> Tensors:
    classes = client.num_classes
    counts: Tensors = {"support": torch.zeros(classes, dtype=torch.int64)}
    for scores, y in batches:
        counts["support"] = counts["support"].to(y.device).index_add(0, y, torch.ones_like(y))
        for rule, score in scores.items():
            answers = score.argmax(1)
            right = (answers == y).long()
            _add(counts, f"correct.{rule}", (classes,), y, right)
            _add(counts, f"predicted.{rule}", (classes,), answers, torch.ones_like(y))
            if rule in PROBABLE:
                _add_probabilities(counts, rule, score, y, right)
    return {name: count.cpu() for name, count in counts.items()}


def _add(counts: Tensors, name: str, shape: tuple[int, ...], index: Tensor, values: Tensor) -> None:
    if name not in counts:
        counts[name] = torch.zeros(shape, dtype=values.dtype, device=values.device)
    counts[name].index_add_(counts[name].ndim - 1, index, values)


def _add_probabilities(counts: Tensors, rule: str, score: Tensor, y: Tensor, right: Tensor) -> None:
    """Add up how surprising the true classes (B,) are to the softmax of scores (B, K), and how sure it is."""
    logs = score.double().log_softmax(1).nan_to_num(nan=LEAST_LOG)  # a network may have left the numbers
    surprise = -logs.gather(1, y.unsqueeze(1)).clamp(min=LEAST_LOG).sum()
    counts[f"surprise.{rule}"] = counts.get(f"surprise.{rule}", 0.0) + surprise
    sure = logs.amax(1).exp()  # (B,) confidence of the answers
    bins = (sure * BINS).long().clamp(max=BINS - 1)
    _add(counts, f"bins.{rule}", (3, BINS), bins, torch.stack([torch.ones_like(sure), sure, right.double()]))


def count_unseen(client: Client, samples: Samples, state: Tensors) -> int:
    """Count the samples whose class has no local prototype."""
    if "prototypes" not in state:
        return 0
    counts = samples.class_counts(client.num_classes)
    classes, _ = vectors_by_class(state, "prototypes", client.num_classes)
    counts[classes] = 0
    return int(counts.sum())
