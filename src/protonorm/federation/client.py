"""Client steps: initialise, train and evaluate; identical in simulation and deployment."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protonorm.core.algorithm import Algorithm, checked_scores, checked_state, checked_step
from protonorm.core.node import OPTIMISER, Client, OptimiserMemory
from protonorm.core.randomness import seeded
from protonorm.core.samples import Samples
from protonorm.core.secure_sum import simulated
from protonorm.core.task import Counts, Order, Reply, Site, Task
from protonorm.federation.experts import JOINT, Sharpness, fit_experts, joint_scores
from protonorm.geometry.prototypes import vectors_by_class
from protonorm.metrics import counters
from protonorm.metrics.base import LEAST_LOG, Answers, Count
from protonorm.tensors import Tensors, prefixed, strip_prefix, to_device, without_prefix

# Rules whose scores are logits of probabilities.
PROBABLE = ("logits", "received", "shared", "coarse", "gaussian", "own", "public", "both", JOINT)
VALIDATION = "validation"
BY_CLASS = Count(("K",), "int64")

Batch = tuple[dict[str, Tensor], Tensor]  # scores (B, K) by rule, labels (B,)


def first_state(task: Task, site: Site) -> Tensors:
    """Return a client's state before its first round."""
    client = site.fresh_client()
    with seeded(task.seed, 0, site.id, "state"):
        return checked_state(task.algorithm, "init_client", task.algorithm.init_client(client))


def train_step(task: Task, site: Site, order: Order, state: Tensors, message: Tensors) -> tuple[Tensors, Reply]:
    """Train a client; return its new state and its reply to the server's message."""
    start = time.perf_counter()
    client, memory = site.client(order.round), None
    if client.training.optimiser_state == "kept":
        memory = OptimiserMemory(strip_prefix(state, OPTIMISER))
        client, state = replace(client, memory=memory), without_prefix(state, OPTIMISER)
    with seeded(task.seed, order.round, order.id):
        result = task.algorithm.local_update(client, state, message)
    step = checked_step(task.algorithm, "local_update", result)
    message, metrics = step.message, dict(step.metrics)
    protect = client.training.protect  # the owner's outgoing step
    if order.members:
        message, metrics = simulated(task, client, order, message), {}
    elif not task.secure:  # otherwise it is the node that masks, once its members are known
        message = protect.apply(task, client, message)
    kept = prefixed(OPTIMISER, memory.after) if memory else {}
    metrics = {} if protect.private else metrics
    return step.state | kept, Reply(order.id, message, metrics, time.perf_counter() - start)


def evaluate_step(
    task: Task, site: Site, order: Order, state: Tensors, message: Tensors, parts: Sequence[str]
) -> Counts:
    """Count a client's correct predictions over parts of its samples, with the server's latest message.

    Where parts of the model are shared, the model is measured as trained (`logits`) and as received (`received`); a
    method with several rules is also measured by their combination (`joint`), fitted on the validation part. The counts
    of a part are prefixed with its name.
    """
    algorithm, client, state = task.algorithm, site.client(order.round), without_prefix(state, OPTIMISER)
    all_counts: Tensors = {}  # counts of all parts
    temperatures: Sharpness = {}
    with seeded(task.seed, order.round, order.id, "evaluate"), torch.no_grad():
        received = algorithm.receive(client, state, message)
        for part in sorted(parts, key=lambda part: part != VALIDATION):  # validation first: `joint` is fitted on it
            samples = client.part(part)
            batches: Iterable[Batch] = score_samples(algorithm, client, samples, state, message, received)
            if JOINT in algorithm.rules and part == VALIDATION:
                batches, temperatures = _fitted(algorithm, batches)
            elif JOINT in algorithm.rules:
                scored, fitted = batches, temperatures
                batches = ((s | {JOINT: joint_scores(experts_of(algorithm, s), fitted)}, y) for s, y in scored)
            counts = count_answers(batches, client)
            if part == VALIDATION:
                counts |= {
                    f"sharpness.{rule}": torch.tensor(x, dtype=torch.float64) for rule, x in temperatures.items()
                }
            counts["unseen"] = torch.tensor(count_unseen(client, samples, state))
            all_counts |= prefixed(part, counts)
    return Counts(order.id, all_counts)


def score_samples(
    algorithm: Algorithm, client: Client, samples: Samples, state: Tensors, message: Tensors, received: Tensors | None
) -> Iterator[Batch]:
    """Yield scores (B, K) by rule and labels (B,), batch by batch."""
    state, message = to_device(state, client.device), to_device(message, client.device)  # once, not in each batch
    received = None if received is None else to_device(received, client.device)
    client.load(state).eval()
    for x, y in samples.sweep(device=client.device):
        with client.autocast():
            result = algorithm.scores(client, state, message, x)
            scores = checked_scores(algorithm, result, (len(y), client.num_classes))
        if received is not None:
            client.load(received).eval()
            with client.autocast():
                received_scores = algorithm.scores(client, received, message, x)
            scores |= {"received": received_scores["logits"]} if "logits" in received_scores else {}
            client.load(state).eval()
        yield scores, y


def experts_of(algorithm: Algorithm, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the scores of the rules that `joint` combines: all rules of the method whose scores exist yet."""
    return {rule: scores[rule] for rule in algorithm.rules if rule in scores and rule != JOINT}


def _fitted(algorithm: Algorithm, batches: Iterable[Batch]) -> tuple[list[Batch], Sharpness]:
    """Fit `joint` on validation samples; return them as a single batch with joint scores, and 1/T of each rule."""
    collected = list(batches)
    if not collected:
        return [], {}
    scores = {rule: torch.cat([batch[rule] for batch, _ in collected]).cpu() for rule in collected[0][0]}  # (n, K)
    y = torch.cat([labels for _, labels in collected]).cpu()
    temperatures, joint = fit_experts(experts_of(algorithm, scores), y)
    return [(scores | {JOINT: joint}, y)], temperatures


@torch.no_grad()
def count_answers(batches: Iterable[Batch], client: Client) -> Tensors:
    """Count predictions: support (K,), and by rule correct (K,), predicted (K,) and what metrics declare."""
    counts: Tensors = {"support": torch.zeros(client.num_classes, dtype=torch.int64)}

    def total(name: str, count: Count, device: torch.device) -> Tensor:
        if name not in counts:
            sizes, dtype = count.sizes(client.num_classes), getattr(torch, count.dtype)
            counts[name] = torch.zeros(sizes, dtype=dtype, device=device)
        return counts[name]

    for scores, y in batches:
        counts["support"] = counts["support"].to(y.device).index_add(0, y, torch.ones_like(y))
        for rule, score in scores.items():
            predicted = score.argmax(1)
            # After divergence a probability may be NaN.
            logs = score.double().log_softmax(1).nan_to_num(nan=LEAST_LOG) if rule in PROBABLE else None
            answers = Answers(score, y, predicted, (predicted == y).long(), logs)
            total(f"correct.{rule}", BY_CLASS, y.device).index_add_(0, y, answers.correct)
            total(f"predicted.{rule}", BY_CLASS, y.device).index_add_(0, predicted, torch.ones_like(y))
            for metric in counters(client.training.metrics):
                if rule in PROBABLE or not metric.probabilities:
                    declared = {name: total(f"{name}.{rule}", count, y.device) for name, count in metric.counts.items()}
                    metric.count(answers, declared)
                    counts |= {f"{name}.{rule}": value for name, value in declared.items()}
    return {name: count.cpu() for name, count in counts.items()}


def count_unseen(client: Client, samples: Samples, state: Tensors) -> int:
    """Count the samples whose class has no local prototype."""
    if "prototypes" not in state:
        return 0
    counts = samples.class_counts(client.num_classes)
    classes, _ = vectors_by_class(state, "prototypes", client.num_classes)
    counts[classes] = 0
    return int(counts.sum())
