"""Training that several methods share: of clients on their labels, and of the server."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from protonorm.core import Client, Server, SplitModel
from protonorm.errors import Diverged


def fit_labels(client: Client, model: SplitModel, clip: float | None = None) -> float:
    """Train a model with the cross-entropy of its logits; return the mean loss."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return client.cross_entropy(model(x), y)

    return client.fit(loss, model, clip=clip)


@contextmanager
def fixed(*modules: nn.Module) -> Iterator[None]:
    """Exclude the weights of modules from training; batch norm's running statistics move all the same."""
    weights = [weight for module in modules for weight in module.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def squared_distance(model: nn.Module, start: Iterable[Tensor]) -> Tensor:
    """Compute ‖w − w_0‖² of a model's parameters w and tensors w_0 in the same order."""
    pairs = zip(model.parameters(), start, strict=True)
    return torch.stack([(weight - first).square().sum() for weight, first in pairs]).sum()


def shuffled(vectors: Tensor, labels: Tensor, epochs: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of vectors (N, d) and labels (N,) in a new order each epoch; the last batch may be smaller."""
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(size):
            if len(rows):  # an empty tensor splits into a single empty part
                yield vectors[rows], labels[rows]


def descend(
    loss: Callable[..., Tensor], batches: Iterable[tuple[Tensor, ...]], optimiser: torch.optim.Optimizer, server: Server
) -> float:
    """Perform an optimiser step on the loss of each batch; return the mean loss, 0 if there is no batch."""
    total, count = 0.0, 0
    for batch in batches:
        optimiser.zero_grad()
        value = loss(*batch)
        value.backward()
        optimiser.step()
        total += float(value.detach())
        count += 1
    if not math.isfinite(total):
        raise Diverged(f"The server's training loss became {total} in round {server.round}.")
    return total / max(count, 1)
