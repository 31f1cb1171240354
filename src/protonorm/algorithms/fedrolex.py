"""FedRolex: narrow clients train some channels of every layer, others in every round, so that all are trained alike.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022.

server remembers: model.* (parameters of the widest network), pixels.* () columns of a layer for a channel, if not one
server says:      model.*
client remembers: model.* of its own width, classes (K_i,), turn () the round whose channels it has
client says:      model.* (parameters of its own width), classes (K_i,); num_examples () if weighted
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from protonorm.algorithms.heterofl import HeteroFL
from protonorm.algorithms.parts.statistics import with_statistics
from protonorm.algorithms.parts.widths import average_parts, cut, part_of, pixels
from protonorm.core import Client, Server, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, prefixed, under


@dataclass(frozen=True, config=STRICT)
class FedRolex(HeteroFL):
    """Train one model as HeteroFL does, but narrow clients have another part of it in every round."""

    def init_server(self, server: Server) -> Step:
        """Begin with one model for all, and remember which of its columns belong together."""
        assert server.model is not None
        model = super().init_server(server).message
        counts = pixels(server.model).items()
        several = {name: torch.tensor(count) for name, count in counts if 1 < count < model[name].shape[1]}
        return Step(model | prefixed("pixels", several), model)

    def init_client(self, client: Client) -> Tensors:
        """Begin with a network of the client's own width, used until the server's arrives."""
        return super().init_client(client) | {"turn": torch.tensor(0)}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over one's part of the whole model: the channels that one trained last, and has statistics of."""
        part = cut(message, state, int(state["turn"]), pixels(client.model))
        return with_statistics(client, state | part)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train this round's part of the whole model with the cross-entropy, and remember which it was."""
        turn = client.round - 1
        part = cut(message, state, turn, pixels(client.model))
        return self.train(client, state | part | {"turn": torch.tensor(turn)})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average each number over the clients that have it in this round."""
        kept = under(state, "pixels")
        whole = prefixed("model", under(state, "model"))
        counts = {name: int(count) for name, count in kept.items()}
        model = average_parts(whole, map(part_of, replies), server.round - 1, counts)
        return Step(model | prefixed("pixels", kept), model)
