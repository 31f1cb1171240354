"""The bare limit: a round's passes written straight in torch, and nothing else.

One process with one thread for each core, each with its share of the clients. The networks are the lowered ones and
the batches have the sizes of ProtoNorm's; there is no server, no state that moves, no seed, no record and no check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from protonorm import Experiment
from protonorm.federation.population import SimulatedPopulation
from protonorm.session.build import build

SIZE, EVALUATION = 32, 128


class PlainClient(NamedTuple):
    """A client that stays in memory."""

    model: Any
    optimiser: torch.optim.Optimizer
    train: tuple[Tensor, Tensor]  # pictures (n, H, W, C) uint8, labels (n,)
    test: tuple[Tensor, Tensor]


def make_clients(settings: dict[str, Any], ids: list[int]) -> tuple[list[PlainClient], Tensor]:
    """Make the clients, and some prototypes (K, d) to train towards."""
    torch.set_num_threads(1)
    task, population = build(Experiment.of(settings))
    clients = [make_client(population, id) for id in ids]
    return clients, torch.randn(task.num_classes, task.feature_dim)


def make_client(population: SimulatedPopulation, id: int) -> PlainClient:
    """Make one client."""
    client = population.site(id).fresh_client()
    optimiser = torch.optim.SGD(client.model.parameters(), client.lr, fused=True)
    parts = [(part.inputs[part.index], part.targets[part.index]) for part in (client.train, client.test)]
    return PlainClient(client.model, optimiser, *parts)


def run_round(clients: list[PlainClient], targets: Tensor) -> None:
    """Do what a process has to do in a round."""
    for one in clients:
        train(one, targets)
        with torch.no_grad():
            one.model.eval()
            measure(one, targets)
            test(one, targets)


def train(client: PlainClient, targets: Tensor) -> None:
    """Pass once over the training part, with gradients."""
    client.model.train()
    pictures, labels = client.train
    order = torch.randperm(len(labels))
    for rows in order.split(SIZE):
        if len(rows) < SIZE <= len(labels):
            break
        x, y = ready(pictures[rows]), labels[rows]
        client.optimiser.zero_grad()
        z = client.model.features(x)
        loss = cross_entropy(client.model.head(z), y) + mse_loss(z, targets[y])
        loss.backward()
        client.optimiser.step()


def measure(client: PlainClient, targets: Tensor) -> Tensor:
    """Pass once over the training part for the prototypes (K, d)."""
    sums, counts = torch.zeros_like(targets), torch.zeros(len(targets))
    for x, y in batches(client.train):
        sums.index_add_(0, y, client.model.features(x))
        counts.index_add_(0, y, torch.ones(len(y)))
    return sums / counts.clamp(min=1)[:, None]


def test(client: PlainClient, targets: Tensor) -> tuple[int, int]:
    """Pass once over the test part: right answers by logits and by the nearest prototype."""
    by_logits = by_nearest = torch.zeros((), dtype=torch.int64)
    for x, y in batches(client.test):
        z = client.model.features(x)
        by_logits = by_logits + (client.model.head(z).argmax(1) == y).sum()
        by_nearest = by_nearest + ((2 * z @ targets.T - targets.square().sum(1)).argmax(1) == y).sum()
    return int(by_logits), int(by_nearest)


def batches(part: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a part into batches in its order."""
    for pictures, labels in zip(part[0].split(EVALUATION), part[1].split(EVALUATION), strict=True):
        if len(labels):
            yield ready(pictures), labels


def ready(pictures: Tensor) -> Tensor:
    """Turn bytes (B, H, W, C) into what a network takes."""
    return pictures.float().div_(127.5).sub_(1).permute(0, 3, 1, 2)
