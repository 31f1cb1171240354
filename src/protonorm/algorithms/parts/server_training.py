"""Training on the server: prototype generator, shuffled batches and gradient descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from protonorm.core import Server
from protonorm.errors import Diverged

NARROWEST = 64  # with fewer ReLUs all may be inactive for several classes, whose prototypes then coincide permanently


def prototype_generator(server: Server, hidden: int | None) -> nn.Sequential:
    """Build the network that maps class indices to prototypes, j -> ĉ_j; its hidden layer has max(d, 64) units."""
    width = server.feature_dim
    hidden = hidden or max(width, NARROWEST)
    into, out = nn.Linear(width, hidden), nn.Linear(hidden, width)
    return nn.Sequential(nn.Embedding(server.num_classes, width), into, nn.ReLU(), out)


def shuffled(vectors: Tensor, labels: Tensor, epochs: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of vectors (N, d) and labels (N,) in a new order each epoch; the last batch may be smaller."""
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(size):
            if len(rows):  # an empty tensor splits into a single empty part
                yield vectors[rows], labels[rows]


def descend(
    loss: Callable[..., Tensor],
    batches: Iterable[tuple[Tensor, ...]],
    optimiser: torch.optim.Optimizer,
    server: Server,
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
