"""What is left of Duet without own networks: the shared one alone, towards the same directions, class shares outside.

It is the rival that tells whether own networks earn their compute. All clients have the second network as their own.
"""

from __future__ import annotations

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from protonorm import Client, FedAvg, Step
from protonorm.algorithms.duet import Directions, Duet, Unit
from protonorm.core import SplitModel
from protonorm.geometry.alignment import equally_spread
from protonorm.tensors import Tensors, floats, snapshot


@dataclass(frozen=True)
class SharedAlone(FedAvg):
    """Average one network for all that is trained as Duet's shared one."""

    duet = Duet()  # its scale, its directions and its class shares

    def init_client(self, client: Client) -> Tensors:
        """Begin with a network, everybody's directions, and class shares."""
        targets = equally_spread(client.num_classes, client.feature_dim, self.duet.seed)
        return snapshot("model", client.model) | {"targets": targets, "prior": self.duet.log_shares(client)}

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received network with CE(o_g + log π_i, y)."""
        held = self.receive(client, state, message)
        client.load(held)
        network = self.network(client, held)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(network(x), y)

        mean = client.fit(loss, network)
        trained = snapshot("model", client.model)
        said = floats(trained) | {"num_examples": torch.tensor(len(client.train))}
        return Step(held | trained, said, {"loss": mean})

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by directions, with the client's class shares."""
        return {"logits": self.network(client, state).eval()(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Join the loaded network's features with directions as their head."""
        head = Directions(state["targets"], state["prior"], self.duet.scale).to(client.device)
        return SplitModel(Unit(client.model.features), head)
