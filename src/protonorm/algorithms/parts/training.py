"""Training that several methods share: of clients on their labels, and of the server."""

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from protonorm.core import Client, Server, SplitModel
from protonorm.errors import Diverged


def fit_labels(client: Client, model: SplitModel, clip: float | None = None) -> float:
    """Train a model with the cross-entropy of its logits; return the mean loss."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return client.cross_entropy(model(x), y)

    return client.fit(loss, model, clip=clip)


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
