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
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.algorithms.parts.heads import check_linear, first_head, linear, take_head
from protonorm.algorithms.parts.messages import class_vectors, head_slots, make_schema
from protonorm.algorithms.parts.prototypes import class_means, stack_prototypes
from protonorm.algorithms.parts.server_training import descend, shuffled
from protonorm.core import Algorithm, Client, Schema, Server, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.tensors import Tensors, snapshot, under


@dataclass(frozen=True, config=STRICT)
class FedGH(Algorithm):
    """Train features under a head that the server trains on everybody's prototypes."""

    server_epochs: Count = 1  # passes over what the clients sent

    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Clients send prototypes, the server a head."""
        return make_schema(task, up=((class_vectors("K_i"),),), down=head_slots(task))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Refuse a head that is more than one linear layer."""
        check_linear(model, task)

    def init_server(self, server: Server) -> Step:
        """Begin with one head for all."""
        head = first_head(server)
        return Step(head, head)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over the server's head."""
        return take_head(state, message)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and received head with the cross-entropy, then measure the local prototypes."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        return Step(snapshot("model", model), class_means(client, model), {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Train the head to tell the classes of the prototypes apart."""
        head = linear(under(state, "head"))

        def loss(prototypes: Tensor, classes: Tensor) -> Tensor:
            return cross_entropy(head(prototypes), classes)

        batches = shuffled(*stack_prototypes(replies, server), self.server_epochs, server.batch_size)
        mean = descend(loss, batches, torch.optim.SGD(head.parameters(), server.lr), server)
        said = snapshot("head", head)
        return Step(said, said, {"head.loss": mean})
