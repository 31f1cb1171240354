"""FedAvg: the server averages the clients' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

server remembers: model.* (floating tensors; without buffers if those are local)
server says:      the same
client remembers: model.*
client says:      model.* as the server, num_examples ()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from protonorm.algorithms.parts.weights import Buffers, average_by_examples, model_schema, shared
from protonorm.core import Algorithm, Client, Schema, Server, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedAvg(Algorithm):
    """Train the average model on every client's data."""

    buffers: Buffers = "averaged"  # batch norm's statistics; "local" as in PFLlib

    heterogeneous: ClassVar[bool] = False
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Both sides send the model; clients add their numbers of samples."""
        return model_schema(task, self.buffers)

    def init_server(self, server: Server) -> Step:
        """Begin with one model for all."""
        assert server.model is not None
        model = shared("model", server.model, self.buffers)
        return Step(model, model)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over the average model."""
        return state | message

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model with the cross-entropy."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        said = shared("model", model, self.buffers) | {"num_examples": torch.tensor(len(client.train))}
        return Step(snapshot("model", model), said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average the models by their numbers of samples: w = Σ n_i w_i / Σ n_i."""
        model = average_by_examples(replies)
        return Step(model, model)
