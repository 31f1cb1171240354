"""FedRolex: narrow clients train a rolling window of the channels of every layer, so that all are trained equally.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022.

server state:    model.* (parameters of the widest network), pixels.* () columns per channel of a layer, if not 1
server message:  model.*
client state:    model.* of its own width, classes (K_i,), turn () the round whose channels it has
client message:  model.* (parameters of its own width), classes (K_i,); num_examples () if weighted
"""

from __future__ import annotations

import torch

from protonorm.algorithms.heterofl import HeteroFL
from protonorm.algorithms.parts.widths import Pixels, cut, pixels, with_statistics
from protonorm.core import Client, Server, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, prefixed, under


@dataclass(frozen=True, config=STRICT)
class FedRolex(HeteroFL):
    """HeteroFL in which narrow clients train another part of the model in every round."""

    def init_server(self, server: Server) -> Step:
        """Create the initial model of all clients, and store the numbers of columns per channel."""
        assert server.model is not None
        model = super().init_server(server).message
        counts = pixels(server.model).items()
        several = {name: torch.tensor(count) for name, count in counts if 1 < count < model[name].shape[1]}
        return Step(model | prefixed("pixels", several), model)

    def init_client(self, client: Client) -> Tensors:
        """Create a network of the client's own width, used until the server's arrives."""
        return super().init_client(client) | {"turn": torch.tensor(0)}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Extract the client's part of the whole model: the channels trained last, of which it has statistics."""
        part = cut(message, state, int(state["turn"]), pixels(client.model))
        return with_statistics(client, state | part)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train this round's part of the whole model with cross-entropy, and store the round."""
        turn = client.round - 1
        part = cut(message, state, turn, pixels(client.model))
        return self.train(client, state | part | {"turn": torch.tensor(turn)})

    def whole(self, server: Server, state: Tensors) -> tuple[Tensors, int, Pixels]:
        """Return the whole model, this round's offset, which grows by a channel per round, and columns per channel."""
        counts = {name: int(count) for name, count in under(state, "pixels").items()}
        return prefixed("model", under(state, "model")), server.round - 1, counts
