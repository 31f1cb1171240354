"""FedAvg: the server averages the clients' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

server state:    model.* (floating tensors; without buffers if those are local)
server message:  the same
client state:    model.*
client message:  model.* as the server, num_examples ()
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from protonorm.algorithms.parts.messages import Averaged, Buffers, model_schema, shared
from protonorm.core import Client, Schema, Server, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedAvg(Averaged):
    """Federated averaging of whole models."""

    buffers: Buffers = "averaged"  # batch norm statistics; "local" as in PFLlib

    heterogeneous: ClassVar[bool] = False
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send the model; clients add their numbers of samples."""
        return model_schema(task, self.buffers)

    def init_server(self, server: Server) -> Step:
        """Create the initial model of all clients."""
        assert server.model is not None
        model = shared("model", server.model, self.buffers)
        return Step(model, model)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Replace the model by the received average."""
        return state | message

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model with cross-entropy."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        said = shared("model", model, self.buffers) | {"num_examples": torch.tensor(len(client.train))}
        return Step(snapshot("model", model), said, {"loss": mean})
