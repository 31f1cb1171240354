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
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.core import Algorithm, Client, Server, Step
from protonorm.settings import STRICT
from protonorm.tensors import Tensors, alike, floats, snapshot, weighted_mean


@dataclass(frozen=True, config=STRICT)
class LGFedAvg(Algorithm):
    """Train one's own features under the average head."""

    weighting: Literal["samples", "clients"] = "samples"  # by n_i, or all alike as in the authors' code

    auxiliary: ClassVar[bool] = True  # the first head is that of the family's first network
    rules: ClassVar[tuple[str, ...]] = ("received", "logits")
    headline: ClassVar[str] = "received"

    def init_server(self, server: Server) -> Step:
        """Begin with one head for all."""
        assert server.auxiliary is not None
        head = floats(snapshot("head", server.auxiliary.head))
        return Step(head, head)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Put the shared head on one's own features."""
        return state | {own: message[shared] for own, shared in _pairs(state, message)}

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and head together with the cross-entropy."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        trained = snapshot("model", model)
        said = {shared: trained[own] for own, shared in _pairs(trained, message)}
        if self.weighting == "samples":
            said["num_examples"] = torch.tensor(len(client.train))
        return Step(trained, said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average the heads by their numbers of samples: φ = Σ n_i φ_i / Σ n_i."""
        weighted = {"num_examples": torch.tensor(1)} if self.weighting == "samples" else {}
        checked = (alike(reply, state | weighted, "A client's head") for reply in replies)
        head = weighted_mean((float(reply.get("num_examples", 1)), floats(reply)) for reply in checked)
        return Step(head, head)


def _pairs(state: Tensors, message: Tensors) -> list[tuple[str, str]]:
    """Match a client's head with the shared one, name by name in their order: a dropout before it changes its names."""
    own = sorted(name for name in floats(state) if name.startswith("model.head."))
    pairs = list(zip(own, sorted(message), strict=False))
    if len(own) != len(message) or any(state[name].shape != message[shared].shape for name, shared in pairs):
        shapes = [
            sorted(tuple(side[name].shape) for name in names) for side, names in ((state, own), (message, message))
        ]
        raise ValueError(
            f"LG-FedAvg averages heads, so that all clients need heads of the same shapes, "
            f"but one has {shapes[0]} and the shared one has {shapes[1]}."
        )
    return pairs
