"""Training that several methods share: of clients on their labels; of the server, and its prototype generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from protonorm.algorithms.parts.prototypes import Prototypes
from protonorm.core import Client, Server, SplitModel, Step
from protonorm.errors import Diverged
from protonorm.tensors import Tensors, restore, snapshot

NARROWEST = 64  # with fewer ReLUs all may be inactive for several classes, whose prototypes then coincide permanently


def fit_labels(client: Client, model: SplitModel, clip: float | None = None) -> float:
    """Train a model with the cross-entropy of its logits; return the mean loss."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return client.cross_entropy(model(x), y)

    return client.fit(loss, model, clip=clip)


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


class GeneratedPrototypes(Prototypes):
    """Method whose server trains a generator of prototypes on those of the clients."""

    known: ClassVar[str] = "K"

    if TYPE_CHECKING:  # fields of the method
        hidden: int | None  # units of the generator's hidden layer
        server_epochs: int  # passes over the clients' prototypes

    def init_server(self, server: Server) -> Step:
        """Create the generator; send nothing before it is trained."""
        return Step(snapshot("generator", prototype_generator(server, self.hidden)), {})

    def train_generator(
        self, server: Server, state: Tensors, clients: tuple[Tensor, Tensor], loss: Callable[..., Tensor]
    ) -> Step:
        """Train the generator on the clients' prototypes (N, d) and their classes (N,), and publish its own.

        The loss is a function of a batch of them, points (B, d) and labels (B,), and the generator's ĉ (K, d).
        """
        generator, classes = prototype_generator(server, self.hidden), torch.arange(server.num_classes)
        restore("generator", generator, state)
        batches = shuffled(*clients, self.server_epochs, server.batch_size)
        optimiser = torch.optim.SGD(generator.parameters(), server.lr)
        mean = descend(lambda points, y: loss(points, y, generator(classes)), batches, optimiser, server)
        said = {"classes": classes, "prototypes": generator(classes).detach()}
        return Step(snapshot("generator", generator), said, {"generator.loss": mean})
