"""HeteroFL: clients train the first channels of every layer, as many as they can; the server averages what overlaps.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021.

server remembers: model.* (parameters of the widest network)
server says:      the same
client remembers: model.* of its own width, classes (K_i,)
client says:      model.* (parameters of its own width), classes (K_i,); num_examples () if weighted
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protonorm.algorithms.parts.heads import check_one_layer
from protonorm.algorithms.parts.messages import EXAMPLES
from protonorm.algorithms.parts.statistics import new_statistics, with_statistics
from protonorm.algorithms.parts.widths import (
    CLASSES,
    OwnClasses,
    average_parts,
    cut,
    own_classes,
    parameters,
    part_of,
    width_schema,
)
from protonorm.core import Algorithm, Client, Schema, Server, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class HeteroFL(Algorithm):
    """Train one model of which narrow clients have a part."""

    masked: bool = True  # whether a client leaves the logits of classes that it lacks out
    weighting: Literal["clients", "samples"] = "clients"  # of the average: all alike as published, or by n_i

    heterogeneous: ClassVar[bool] = False
    widths: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """The server sends the whole model, clients their parts and classes."""
        return width_schema(task, CLASSES, *([EXAMPLES] if self.weighting == "samples" else []))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Refuse a head that has other parameters than one linear layer."""
        check_one_layer(model, task)

    def init_server(self, server: Server) -> Step:
        """Begin with one model for all."""
        assert server.model is not None
        model = parameters(server.model)
        return Step(model, model)

    def init_client(self, client: Client) -> Tensors:
        """Begin with a network of the client's own width, used until the server's arrives."""
        return snapshot("model", client.model) | {"classes": own_classes(client)}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over one's part of the whole model; who has no statistics yet measures them."""
        return with_statistics(client, state | cut(message, state))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the first channels of the whole model with the cross-entropy."""
        return self.train(client, state | cut(message, state))

    def train(self, client: Client, held: Tensors) -> Step:
        """Train one's part of the whole model with the cross-entropy."""
        client.load(held)
        model = self.network(client, held)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        with new_statistics(client.model):
            mean = client.fit(loss, model)
        said = parameters(client.model) | {"classes": own_classes(client)}
        counted = {"num_examples": torch.tensor(len(client.train))} if self.weighting == "samples" else {}
        return Step(held | snapshot("model", client.model), said | counted, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average each number over the clients that have it."""
        model = average_parts(state, map(part_of, replies))
        return Step(model, model)

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by the client's own part of the model."""
        return {"logits": self.network(client, state).eval()(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Leave classes that the client lacks out of the loaded network's logits."""
        if not self.masked:
            return client.model
        head = OwnClasses(client.model.head, state["classes"], client.num_classes).to(client.device)
        return SplitModel(client.model.features, head)
