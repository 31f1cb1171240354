"""FedRolex: narrow clients train some channels of every layer, others in every round, so that all are trained alike.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022.

server remembers: model.* (parameters of the widest network)
server says:      the same
client remembers: model.* of its own width, classes (K_i,), turn () the round whose channels it has
client says:      model.* (parameters of its own width), classes (K_i,); num_examples () if weighted
"""

from __future__ import annotations

import torch

from protonorm.algorithms.heterofl import HeteroFL
from protonorm.algorithms.parts.statistics import with_statistics
from protonorm.algorithms.parts.widths import cut
from protonorm.core import Client, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors


@dataclass(frozen=True, config=STRICT)
class FedRolex(HeteroFL):
    """Train one model as HeteroFL does, but narrow clients have another part of it in every round."""

    def turn(self, round: int) -> int:
        """Say by how many channels a round's parts are shifted: by one more in every round."""
        return round - 1

    def init_client(self, client: Client) -> Tensors:
        """Begin with a network of the client's own width, used until the server's arrives."""
        return super().init_client(client) | {"turn": torch.tensor(0)}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over one's part of the whole model: the channels that one trained last, and has statistics of."""
        return with_statistics(client, state | cut(message, state, int(state["turn"])))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train this round's part of the whole model with the cross-entropy, and remember which it was."""
        return super().local_update(client, state | {"turn": torch.tensor(self.turn(client.round))}, message)
