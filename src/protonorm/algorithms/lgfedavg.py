"""LG-FedAvg: every client has features of its own, and all share one head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.

server remembers: head.* (weight (K, d), and bias (K,) if there is one)
server says:      the same
client remembers: model.*
client says:      head.*; num_examples () if weighted
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protonorm.algorithms.parts.heads import check_one_layer, first_head, said_head, take_head
from protonorm.algorithms.parts.messages import EXAMPLES, head_slots, make_schema
from protonorm.core import Algorithm, Client, Schema, Server, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, floats, snapshot, weighted_mean


@dataclass(frozen=True, config=STRICT)
class LGFedAvg(Algorithm):
    """Train each client's own features under the average head."""

    weighting: Literal["samples", "clients"] = "samples"  # by n_i, or all alike as in the authors' code

    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Both sides send a head; clients add their numbers of samples if weighted."""
        head = head_slots(task)
        return make_schema(task, up=(*head, EXAMPLES) if self.weighting == "samples" else head, down=head)

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Refuse a head that has other parameters than one linear layer."""
        check_one_layer(model, task)

    def init_server(self, server: Server) -> Step:
        """Begin with one head for all."""
        head = first_head(server)
        return Step(head, head)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Put the shared head on the client's own features."""
        return take_head(state, message)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and head together with the cross-entropy."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        trained = snapshot("model", model)
        said = said_head(trained)
        if self.weighting == "samples":
            said["num_examples"] = torch.tensor(len(client.train))
        return Step(trained, said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average the heads by the clients' numbers of samples, φ = Σ n_i φ_i / Σ n_i, or all alike."""
        head = weighted_mean((float(reply.get("num_examples", 1)), floats(reply)) for reply in replies)
        return Step(head, head)
