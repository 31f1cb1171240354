"""What happens at a client: it begins, it trains, it is evaluated; the same in simulation and on a real network."""

from __future__ import annotations

import time

import torch

from protonorm.core.algorithm import Algorithm
from protonorm.core.node import Client
from protonorm.core.protocols import Site
from protonorm.core.randomness import seeded
from protonorm.core.samples import Samples
from protonorm.core.task import Counts, Order, Reply, Task
from protonorm.geometry.prototypes import vectors_by_class
from protonorm.tensors import Tensors


def first_state(task: Task, site: Site) -> Tensors:
    """Let a client begin: what it remembers before its first round."""
    client = site.fresh_client()
    with seeded(task.seed, 0, site.id, "state"):
        return task.algorithm.init_client(client)


def train_step(task: Task, site: Site, order: Order, state: Tensors, message: Tensors) -> tuple[Tensors, Reply]:
    """Let a client train: its new state, and its reply to the server's message."""
    start = time.perf_counter()
    client = site.client(order.round)
    with seeded(task.seed, order.round, order.id):
        step = task.algorithm.local_update(client, state, message)
    return step.state, Reply(order.id, step.message, dict(step.metrics), time.perf_counter() - start)


def evaluate_step(task: Task, site: Site, order: Order, state: Tensors, message: Tensors, part: str) -> Counts:
    """Let a client count its right answers over a part of its samples, with the server's newest message.

    Where model parts are shared, the model is measured as trained (`logits`) and as received (`received`).
    """
    algorithm, client = task.algorithm, site.client(order.round)
    samples = client.part(part)
    with seeded(task.seed, order.round, order.id, "evaluate"):
        counts = count_correct(algorithm, client, samples, state, message)
        received = algorithm.receive(client, state, message)
        if received is not None:
            arrived = count_correct(algorithm, client, samples, received, message)
            counts["correct.received"] = arrived["correct.logits"]
    counts["unseen"] = torch.tensor(count_unseen(client, samples, state))
    return Counts(order.id, counts)


@torch.no_grad()
def count_correct(algorithm: Algorithm, client: Client, samples: Samples, state: Tensors, message: Tensors) -> Tensors:
    """Count right answers by class and rule in one pass over samples: support (K,), correct.<rule> (K,)."""
    client.load(state).eval()
    counts: Tensors = {"support": torch.zeros(client.num_classes, dtype=torch.int64, device=client.device)}
    for x, y in samples.sweep(device=client.device):
        with client.autocast():
            scores = algorithm.scores(client, state, message, x)
        counts["support"].index_add_(0, y, torch.ones_like(y))
        for rule, score in scores.items():
            found = counts.setdefault(f"correct.{rule}", torch.zeros_like(counts["support"]))
            found.index_add_(0, y, (score.argmax(1) == y).long())
    return {name: count.cpu() for name, count in counts.items()}


def count_unseen(client: Client, samples: Samples, state: Tensors) -> int:
    """Count the samples whose class has no local prototype."""
    if "prototypes" not in state:
        return 0
    counts = samples.class_counts(client.num_classes)
    classes, _ = vectors_by_class(state, "prototypes", client.num_classes)
    counts[classes] = 0
    return int(counts.sum())
