"""FedMRL: features of a small shared network and of the client's own are fused into a nested representation.

Yi et al., "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024.

server state:    small.* (floating tensors of the second network, whose features have dimension d_s)
server message:  the same
client state:    model.*, small.*, projector.weight (d, d_s + d), projector.bias (d,)
client message:  small.* as the server; num_examples () if weighted
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from protonorm.algorithms.parts.messages import Averaged, Received, Weighting, examples, examples_slots, second_network
from protonorm.core import Client, Schema, Server, SplitModel, Step, Task, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Width
from protonorm.tensors import Tensors, floats, restore, snapshot


@dataclass(frozen=True, config=STRICT)
class FedMRL(Received, Averaged):
    """Own network and small shared network trained on features that a projector fuses from both."""

    shared_dim: Width = 128  # d_s, features of the small network, and length of the nested representation; at most d
    weighting: Weighting = "samples"  # of the small networks' average: by n_i, or equal

    auxiliary: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "coarse", "joint")

    def auxiliary_dim(self, feature_dim: int) -> int:
        """Return d_s."""
        return min(self.shared_dim, feature_dim)

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send the small network; clients add their numbers of samples if weighted."""
        small = slots_like(floats(snapshot("small", task.template)))
        return Schema(up=(*small, *examples_slots(self.weighting)), down=small)

    def init_server(self, server: Server) -> Step:
        """Create the initial small network of all clients."""
        small = floats(snapshot("small", second_network(server)))
        return Step(small, small)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's network, projector and small network."""
        own = snapshot("model", client.model) | snapshot("small", second_network(client))
        return own | snapshot("projector", self._projector(client))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train all three with CE(g_i(h), y) + CE(g_g(h[:d_s]), y), h = P_i([f_g(x), f_i(x)])."""
        received = self.receive(client, state, message)
        client.load(received)
        model, small = self.network(client, received), second_network(client)
        coarse = Nested(small.head, self.auxiliary_dim(client.feature_dim))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            h = model.features(x)  # (B, d)
            return client.cross_entropy(model.head(h), y) + client.cross_entropy(coarse(h), y)

        mean = client.fit(loss, model, coarse)  # the small network's features are part of the joint ones
        trained = snapshot("small", small)
        new_state = snapshot("model", client.model) | trained
        new_state |= snapshot("projector", model.get_submodule("features.projector"))
        return Step(new_state, floats(trained) | examples(client, self.weighting), {"loss": mean})

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score with the own head on the joint features, and with the small network's head on the first d_s."""
        model = self.network(client, state).eval()
        h = model.features(x)  # (B, d)
        return {"logits": model.head(h)} | {rule: head(h) for rule, head in self.heads(client, state).items()}

    def heads(self, client: Client, state: Tensors) -> dict[str, nn.Module]:
        """Return the small network's head, loaded by `network`, on the first d_s joint features."""
        return {"coarse": Nested(second_network(client).head, self.auxiliary_dim(client.feature_dim)).eval()}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Combine the loaded network's features with those of the small network in the state."""
        small, projector = second_network(client), self._projector(client)
        restore("small", small, state)
        restore("projector", projector, state)
        return SplitModel(Joint(small.features, client.model.features, projector), client.model.head)

    def _projector(self, client: Client) -> nn.Linear:
        """Create P_i (d_s + d -> d), randomly initialised."""
        width = client.feature_dim
        return nn.Linear(self.auxiliary_dim(width) + width, width).to(client.device, non_blocking=True)


class Joint(nn.Module):
    """Joint features h = P([f_g(x), f_i(x)]), of which the first d_s form a coarse representation."""

    def __init__(self, small: nn.Module, own: nn.Module, projector: nn.Linear) -> None:
        super().__init__()
        self.small, self.own, self.projector = small, own, projector

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to its joint features (B, d)."""
        h: Tensor = self.projector(torch.cat([self.small(x), self.own(x)], dim=1))
        return h


class Nested(nn.Module):
    """Head on the first d_s joint features."""

    def __init__(self, head: nn.Module, width: int) -> None:
        super().__init__()
        self.head, self.width = head, width

    def forward(self, h: Tensor) -> Tensor:
        """Map joint features (B, d) to logits (B, K)."""
        logits: Tensor = self.head(h[:, : self.width])
        return logits
