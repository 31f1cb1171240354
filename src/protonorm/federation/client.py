"""Client steps: initialise, train and evaluate; identical in simulation and deployment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from protonorm.core.algorithm import Algorithm, checked_scores, checked_state, checked_step
from protonorm.core.node import Client
from protonorm.core.protocols import Site
from protonorm.core.randomness import seeded
from protonorm.core.samples import Samples
from protonorm.core.task import Counts, Order, Reply, Task
from protonorm.federation.experts import JOINT, Sharpness, fit_experts, joint_scores
from protonorm.geometry.prototypes import vectors_by_class
from protonorm.metrics import metrics
from protonorm.metrics.base import Answers, Count, Metric
from protonorm.metrics.probability import LEAST_LOG
from protonorm.tensors import Tensors, prefixed

PROBABLE = ("logits", "received", "shared", "coarse", JOINT)  # rules whose scores are logits of probabilities
VALIDATION = "validation"

Batch = tuple[dict[str, Tensor], Tensor]  # scores (B, K) by rule, labels (B,)


def first_state(task: Task, site: Site) -> Tensors:
    """Return a client's state before its first round."""
    client = site.fresh_client()
    with seeded(task.seed, 0, site.id, "state"):
        return checked_state(task.algorithm, "init_client", task.algorithm.init_client(client))


def train_step(task: Task, site: Site, order: Order, state: Tensors, message: Tensors) -> tuple[Tensors, Reply]:
    """Train a client; return its new state and its reply to the server's message."""
    start = time.perf_counter()
    client = site.client(order.round)
    with seeded(task.seed, order.round, order.id):
        found = task.algorithm.local_update(client, state, message)
    step = checked_step(task.algorithm, "local_update", found)
    message = client.training.protect.apply(task, client, step.message)  # the owner's outgoing steps
    return step.state, Reply(order.id, message, dict(step.metrics), time.perf_counter() - start)


def evaluate_step(
    task: Task, site: Site, order: Order, state: Tensors, message: Tensors, parts: Sequence[str]
) -> Counts:
    """Count a client's correct predictions over parts of its samples, with the server's latest message.

    Where parts of the model are shared, the model is measured as trained (`logits`) and as received (`received`); a
    method with several rules is also measured by their combination (`joint`), fitted on the validation part. The counts
    of a part are prefixed with its name.
    """
    algorithm, client = task.algorithm, site.client(order.round)
    found: Tensors = {}
    sharpness: Sharpness = {}
    with seeded(task.seed, order.round, order.id, "evaluate"), torch.no_grad():
        received = algorithm.receive(client, state, message)
        for part in sorted(parts, key=lambda one: one != VALIDATION):  # validation first: `joint` is fitted on it
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
    """Count predictions by class and rule in a single pass over samples.

    Returns:
        support (K,), and for each rule correct.<rule> (K,), predicted.<rule> (K,), and the counts that metrics declare.
    """
    return _count(score_samples(algorithm, client, samples, state, message, None), client)


def score_samples(
    algorithm: Algorithm, client: Client, samples: Samples, state: Tensors, message: Tensors, received: Tensors | None
) -> Iterator[Batch]:
    """Yield scores (B, K) by rule and labels (B,), batch by batch."""
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
    """Return the scores of the rules that `joint` combines: all rules of the method whose scores exist yet."""
    return {rule: scores[rule] for rule in algorithm.rules if rule in scores and rule != JOINT}


def _fitted(algorithm: Algorithm, batches: Iterable[Batch]) -> tuple[list[Batch], Sharpness]:
    """Fit `joint` on validation samples; return them as a single batch with joint scores, and 1/T of each rule."""
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
            answers = _answers(score, y, rule in PROBABLE)
            _add(counts, f"correct.{rule}", classes, y, answers.correct)
            _add(counts, f"predicted.{rule}", classes, answers.predicted, torch.ones_like(y))
            for metric in counted_metrics(rule):
                own = {name: counts.get(f"{name}.{rule}") for name in metric.counts}
                totals = {
                    name: _zeros(metric.counts[name], classes, y) if value is None else value
                    for name, value in own.items()
                }
                metric.count(answers, totals)
                counts |= {f"{name}.{rule}": value for name, value in totals.items()}
    return {name: count.cpu() for name, count in counts.items()}


def counted_metrics(rule: str) -> list[Metric]:
    """List the metrics that declare counts of their own for a rule."""
    return [metric for metric in metrics().values() if metric.counts and (rule in PROBABLE or not metric.probabilities)]


def _answers(score: Tensor, y: Tensor, probable: bool) -> Answers:
    predicted = score.argmax(1)
    # After divergence a probability may be NaN.
    logs = score.double().log_softmax(1).nan_to_num(nan=LEAST_LOG) if probable else None
    return Answers(score, y, predicted, (predicted == y).long(), logs)


def _zeros(count: Count, classes: int, like: Tensor) -> Tensor:
    return torch.zeros(count.sizes(classes), dtype=getattr(torch, count.dtype), device=like.device)


def _add(counts: Tensors, name: str, size: int, index: Tensor, values: Tensor) -> None:
    if name not in counts:
        counts[name] = torch.zeros(size, dtype=values.dtype, device=values.device)
    counts[name].index_add_(0, index, values)


def count_unseen(client: Client, samples: Samples, state: Tensors) -> int:
    """Count the samples whose class has no local prototype."""
    if "prototypes" not in state:
        return 0
    counts = samples.class_counts(client.num_classes)
    classes, _ = vectors_by_class(state, "prototypes", client.num_classes)
    counts[classes] = 0
    return int(counts.sum())
