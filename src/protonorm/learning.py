"""What a server does that trains a small network of its own: on what clients sent, or on what it draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from protonorm.core import Server
from protonorm.errors import Diverged
from protonorm.geometry.prototypes import read_upload
from protonorm.tensors import Tensors


def pairs(replies: Iterable[Tensors], server: Server) -> tuple[Tensor, Tensor]:
    """Put the clients' prototypes one below the other: (N, d), and the class of each (N,)."""
    vectors, labels = [torch.zeros(0, server.feature_dim)], [torch.zeros(0, dtype=torch.int64)]
    for number, reply in enumerate(replies):
        upload = (reply["classes"], reply["prototypes"])
        classes, prototypes, _ = read_upload(upload, server.num_classes, server.feature_dim, f"Upload {number}")
        vectors.append(prototypes.float())
        labels.append(classes.long())
    return torch.cat(vectors), torch.cat(labels)


def shuffled(vectors: Tensor, labels: Tensor, epochs: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Go through vectors (N, d) and labels (N,) in a new order each epoch; the last batch may be smaller."""
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(size):
            if len(rows):  # an empty tensor splits into one empty part
                yield vectors[rows], labels[rows]


def descend(
    loss: Callable[..., Tensor],
    batches: Iterable[tuple[Tensor, ...]],
    optimiser: torch.optim.Optimizer,
    server: Server,
) -> float:
    """Take one step on the loss of each batch; return the mean loss, 0 where there is no batch."""
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
