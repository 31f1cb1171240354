"""HeteroFL: clients train the first channels of every layer, up to their width; the server averages overlaps.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021.

server state:    model.* (parameters of the widest network)
server message:  the same
client state:    model.* of its own width, classes (K_i,)
client message:  model.* (parameters of its own width), classes (K_i,); num_examples () if weighted
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from protonorm.algorithms.parts.heads import check_one_layer
from protonorm.algorithms.parts.messages import EXAMPLES
from protonorm.algorithms.parts.widths import (
    CLASSES,
    AveragedParts,
    OwnClasses,
    cut,
    new_statistics,
    own_classes,
    parameters,
    width_schema,
    with_statistics,
)
from protonorm.core import Client, Schema, Server, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class HeteroFL(AveragedParts):
    """Federated averaging of a model of which narrow clients train a part."""

    masked: bool = True  # whether a client masks the logits of classes that it lacks
    weighting: Literal["clients", "samples"] = "clients"  # of the average: equal as published, or by n_i

    heterogeneous: ClassVar[bool] = False
    widths: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Return the schema: the server sends the whole model, clients their parts and classes."""
        return width_schema(task, CLASSES, *([EXAMPLES] if self.weighting == "samples" else []))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head has parameters other than those of a single linear layer."""
        check_one_layer(model, task)

    def init_server(self, server: Server) -> Step:
        """Create the initial model of all clients."""
        assert server.model is not None
        model = parameters(server.model)
        return Step(model, model)

    def init_client(self, client: Client) -> Tensors:
        """Create a network of the client's own width, used until the server's arrives."""
        return snapshot("model", client.model) | {"classes": own_classes(client)}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Extract the client's part of the whole model; measure batch norm statistics if there are none yet."""
        return with_statistics(client, state | cut(message, state))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the first channels of the whole model with cross-entropy."""
        return self.train(client, state | cut(message, state))

    def train(self, client: Client, held: Tensors) -> Step:
        """Train the client's part of the whole model with cross-entropy."""
        client.load(held)
        model = self.network(client, held)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        with new_statistics(client.model):
            mean = client.fit(loss, model)
        said = parameters(client.model) | {"classes": own_classes(client)}
        counted = {"num_examples": torch.tensor(len(client.train))} if self.weighting == "samples" else {}
        return Step(held | snapshot("model", client.model), said | counted, {"loss": mean})

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score with the client's part of the model."""
        return {"logits": self.network(client, state).eval()(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Mask the logits of classes that the client lacks in the loaded network."""
        if not self.masked:
            return client.model
        head = OwnClasses(client.model.head, state["classes"], client.num_classes).to(client.device)
        return SplitModel(client.model.features, head)
