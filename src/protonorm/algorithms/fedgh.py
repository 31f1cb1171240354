"""FedGH: the server trains one head for all on the clients' prototypes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023.

server remembers: head.* (weight (K, d), and bias (K,) if the networks have one)
server says:      the same
client remembers: model.*
client says:      classes (K_i,), prototypes (K_i, d)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.core import Algorithm, Client, Server, Step
from protonorm.heads import first_head, linear, take_head
from protonorm.learning import descend, pairs, shuffled
from protonorm.settings import STRICT, Count
from protonorm.tensors import Tensors, snapshot, under


@dataclass(frozen=True, config=STRICT)
class FedGH(Algorithm):
    """Train features for a head that has learnt from everybody's."""

    server_epochs: Count = 1  # passes over what the clients sent

    auxiliary: ClassVar[bool] = True  # only for the head that the server begins with
    rules: ClassVar[tuple[str, ...]] = ("received", "logits")
    headline: ClassVar[str] = "received"

    def init_server(self, server: Server) -> Step:
        """Begin with one head for all."""
        head = first_head(server)
        return Step(head, head)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take the server's head over."""
        return take_head(state, message)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and received head with the cross-entropy, then measure the local prototypes."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        return Step(snapshot("model", model), client.class_means(model), {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Train the head to tell the classes of the prototypes apart."""
        head = linear(under(state, "head"))

        def loss(prototypes: Tensor, classes: Tensor) -> Tensor:
            return cross_entropy(head(prototypes), classes)

        batches = shuffled(*pairs(replies, server), self.server_epochs, server.batch_size)
        mean = descend(loss, batches, torch.optim.SGD(head.parameters(), server.lr), server)
        said = snapshot("head", head)
        return Step(said, said, {"head.loss": mean})
