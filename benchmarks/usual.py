"""The usual way: what research programs for prototypes do in a round, in its plain form.

Networks as published in NCHW, float pictures in a `DataLoader`, targets and prototypes gathered sample by sample in
Python, one client after the other with torch's own number of threads, and metrics in passes of their own over the
training and the test part. Models and data stay in memory: nothing is read or written.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from protonorm import Experiment
from protonorm.federation.population import SimulatedPopulation
from protonorm.session.build import build

from .bare import ready

SIZE = 32


class PlainClient(NamedTuple):
    """A client that stays in memory."""

    model: Any
    optimiser: torch.optim.Optimizer
    train: DataLoader[Any]
    swept: DataLoader[Any]  # the training part again, whole and in its order
    test: DataLoader[Any]


def make_clients(settings: dict[str, Any], ids: list[int]) -> tuple[list[PlainClient], dict[int, Tensor]]:
    """Make the clients, and some prototypes to train towards."""
    task, population = build(Experiment.of(settings | {"lowering": False}))
    clients = [make_client(population, id) for id in ids]
    return clients, {label: torch.randn(task.feature_dim) for label in range(task.num_classes)}


def make_client(population: SimulatedPopulation, id: int) -> PlainClient:
    """Make one client."""
    client = population.site(id).fresh_client()
    model = client.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    train, test = (
        TensorDataset(ready(part.inputs[part.index]).contiguous(), part.targets[part.index])
        for part in (client.train, client.test)
    )
    loader = DataLoader(train, SIZE, shuffle=True, drop_last=len(train) > SIZE)
    optimiser = torch.optim.SGD(model.parameters(), client.lr)
    return PlainClient(model, optimiser, loader, DataLoader(train, SIZE), DataLoader(test, SIZE))


def run_round(clients: list[PlainClient], prototypes: dict[int, Tensor]) -> None:
    """Do what all clients do in a round."""
    for client in clients:
        train(client, prototypes)
        collect(client)
    for client in clients:
        test(client, prototypes)
    for client in clients:
        losses(client, prototypes)


def train(client: PlainClient, prototypes: dict[int, Tensor]) -> None:
    """Pass once over the training part, with gradients."""
    client.model.train()
    for x, y in client.train:
        z = client.model.features(x)
        loss = cross_entropy(client.model.head(z), y) + mse_loss(z, targets(z, y, prototypes))
        client.optimiser.zero_grad()
        loss.backward()
        client.optimiser.step()


def targets(z: Tensor, y: Tensor, prototypes: dict[int, Tensor]) -> Tensor:
    """Find each sample's prototype."""
    target = z.detach().clone()
    for row, label in enumerate(y):
        if label.item() in prototypes:
            target[row] = prototypes[int(label.item())]
    return target


@torch.no_grad()
def collect(client: PlainClient) -> dict[int, Tensor]:
    """Pass over the training part for the prototypes."""
    client.model.eval()
    by_label: dict[int, list[Tensor]] = defaultdict(list)
    for x, y in client.swept:
        z = client.model.features(x)
        for row, label in enumerate(y):
            by_label[int(label.item())].append(z[row])
    return {label: torch.stack(rows).mean(0) for label, rows in by_label.items()}


@torch.no_grad()
def test(client: PlainClient, prototypes: dict[int, Tensor]) -> float:
    """Pass over the test part: the share of right answers by the nearest prototype."""
    client.model.eval()
    right, total = 0, 0
    for x, y in client.test:
        z = client.model.features(x)
        apart = torch.full((len(y), len(prototypes)), float("inf"))
        for label, prototype in prototypes.items():  # by class: kinder than sample by sample, as some do
            apart[:, label] = (z - prototype).square().mean(1)
        right += int((apart.argmin(1) == y).sum().item())
        total += len(y)
    return right / max(total, 1)


@torch.no_grad()
def losses(client: PlainClient, prototypes: dict[int, Tensor]) -> float:
    """Pass over the training part again, to log its loss."""
    client.model.eval()
    total = 0.0
    for x, y in client.swept:
        z = client.model.features(x)
        loss = cross_entropy(client.model.head(z), y) + mse_loss(z, targets(z, y, prototypes))
        total += loss.item() * len(y)
    return total
