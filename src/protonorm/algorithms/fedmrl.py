"""FedMRL: a small network travels; on every client its features and the client's own become one, nested representation.

Yi et al., "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024.

server remembers: small.* (floating tensors of the second network, whose features have d_s numbers)
server says:      the same
client remembers: model.*, small.*, projector.weight (d, d_s + d), projector.bias (d,)
client says:      small.* as the server; num_examples () if weighted
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from protonorm.algorithms.parts.messages import EXAMPLES
from protonorm.core import Algorithm, Client, Schema, Server, SplitModel, Step, Task, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Width
from protonorm.tensors import Tensors, floats, restore, snapshot, weighted_mean


@dataclass(frozen=True, config=STRICT)
class FedMRL(Algorithm):
    """Train a client's own network and a shared small one on features that a projector makes of both."""

    shared_dim: Width = 128  # d_s, features of the small network, of which the joint ones have the first d_s; d at most
    weighting: Literal["samples", "clients"] = "samples"  # of the small networks' average: by n_i, or all alike

    auxiliary: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "coarse", "joint")
    headline: ClassVar[str] = "received"

    def auxiliary_dim(self, feature_dim: int) -> int:
        """Give d_s."""
        return min(self.shared_dim, feature_dim)

    def schema(self, task: Task) -> Schema:
        """Both sides send the small network; clients add their numbers of samples if weighted."""
        small = slots_like(floats(snapshot("small", task.template)))
        return Schema(up=(*small, EXAMPLES) if self.weighting == "samples" else small, down=small)

    def init_server(self, server: Server) -> Step:
        """Begin with one small network for all."""
        assert server.auxiliary is not None
        small = floats(snapshot("small", server.auxiliary))
        return Step(small, small)

    def init_client(self, client: Client) -> Tensors:
        """Begin with a network and a projector of one's own, and with a small network until the server's arrives."""
        assert client.auxiliary is not None
        own = snapshot("model", client.model) | snapshot("small", client.auxiliary)
        return own | snapshot("projector", self._projector(client))

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over the average small network."""
        return state | message

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train all three with CE(g_i(h), y) + CE(g_g(h[:d_s]), y), h = P_i([f_g(x), f_i(x)])."""
        held = self.receive(client, state, message)
        client.load(held)
        model, small = self.network(client, held), client.auxiliary
        assert small is not None
        coarse = Nested(small.head, self.auxiliary_dim(client.feature_dim))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            h = model.features(x)  # (B, d)
            return client.cross_entropy(model.head(h), y) + client.cross_entropy(coarse(h), y)

        mean = client.fit(loss, model, coarse)  # the small network's features are part of the joint ones
        trained = snapshot("small", small)
        kept = snapshot("model", client.model) | trained
        kept |= snapshot("projector", model.get_submodule("features.projector"))
        counted = {"num_examples": torch.tensor(len(client.train))} if self.weighting == "samples" else {}
        return Step(kept, floats(trained) | counted, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average the small networks by the clients' numbers of samples, θ = Σ n_i θ_i / Σ n_i, or all alike."""
        small = weighted_mean((float(reply.get("num_examples", 1)), floats(reply)) for reply in replies)
        return Step(small, small)

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by the own head on the joint features, and by the small network's on the first of them."""
        model = self.network(client, state).eval()
        h = model.features(x)  # (B, d)
        return {"logits": model.head(h)} | {rule: head(h) for rule, head in self.heads(client, state).items()}

    def heads(self, client: Client, state: Tensors) -> dict[str, nn.Module]:
        """Give the small network's head, which `network` loaded, on the first d_s joint features."""
        assert client.auxiliary is not None
        return {"coarse": Nested(client.auxiliary.head, self.auxiliary_dim(client.feature_dim)).eval()}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Join the loaded network's features with those of the remembered small one."""
        if client.auxiliary is None:
            raise ValueError("FedMRL predicts with two networks, but of the second one no more than its name is known.")
        projector = self._projector(client)
        restore("small", client.auxiliary, state)
        restore("projector", projector, state)
        return SplitModel(Joint(client.auxiliary.features, client.model.features, projector), client.model.head)

    def _projector(self, client: Client) -> nn.Linear:
        """Make P_i (d_s + d -> d), newly drawn."""
        width = client.feature_dim
        return nn.Linear(self.auxiliary_dim(width) + width, width).to(client.device)


class Joint(nn.Module):
    """The features h = P([f_g(x), f_i(x)]), of which the first d_s are a representation of their own."""

    def __init__(self, small: nn.Module, own: nn.Module, projector: nn.Linear) -> None:
        super().__init__()
        self.small, self.own, self.projector = small, own, projector

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to its joint features (B, d)."""
        h: Tensor = self.projector(torch.cat([self.small(x), self.own(x)], dim=1))
        return h


class Nested(nn.Module):
    """A head on the first d_s of the joint features."""

    def __init__(self, head: nn.Module, width: int) -> None:
        super().__init__()
        self.head, self.width = head, width

    def forward(self, h: Tensor) -> Tensor:
        """Map joint features (B, d) to logits (B, K)."""
        logits: Tensor = self.head(h[:, : self.width])
        return logits
