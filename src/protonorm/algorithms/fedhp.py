"""FedHP: clients train prototypes in place of a head; anchors on the sphere keep their directions apart.

Fonio, Polato and Esposito, "FedHP: Federated Learning with Hyperspherical Prototypical Regularization", ESANN 2024.

server state:    classes (K,) all, prototypes (K, d)
server message:  the same
client state:    model.* (its head is unused), anchors (K, d) unit vectors, and the server's message
client message:  classes (K,) all, prototypes (K, d), counts (K,) of its samples by class
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from protonorm.algorithms.parts.messages import class_counts, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import AveragedByClass, by_class
from protonorm.core import Client, Contribution, Schema, Server, SplitModel, Step, Task
from protonorm.core.node import make_optimiser
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative, Positive, Seed
from protonorm.geometry.alignment import equally_spread
from protonorm.tensors import Tensors, on_device, snapshot, to_cpu


@dataclass(frozen=True, config=STRICT)
class FedHP(AveragedByClass):
    """Features and prototypes trained with the cross-entropy of their distances."""

    lam: NonNegative = 0.1  # λ, weight of the angles between prototypes and anchors
    prototype_lr: Positive = 0.005  # learning rate of the prototypes' Adam
    weighting: Literal["shares", "clients"] = "shares"  # weight of a client's row: n_ij/n_i, or equal
    seed: Seed = 0  # of the anchors

    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send prototypes of all classes; clients add counts."""
        reply = {**class_vectors("K"), **class_counts("K", least=0)}
        return make_schema(task, up=((reply,),), down=((class_vectors("K"),),))

    def init_server(self, server: Server) -> Step:
        """Create prototypes at the anchors."""
        prototypes = self._first(server.num_classes, server.feature_dim)
        return Step(prototypes, prototypes)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's model, the common anchors, and prototypes at the anchors."""
        initial = self._first(client.num_classes, client.feature_dim)
        return snapshot("model", client.model) | initial | {"anchors": initial["prototypes"]}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Replace the prototypes by the received average, sorted so that row j is class j."""
        order = message["classes"].argsort()
        return state | {name: rows[order] for name, rows in message.items()}

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and prototypes with CE(−‖z − p_j‖ over j, y) + λ·mean_j(1 − cos(p_j, a_j))."""
        received = self.receive(client, state, message)
        client.load(received)
        model, anchors = self.network(client, received), on_device(received["anchors"], client.device)
        prototypes = model.get_parameter("head.prototypes")

        def loss(x: Tensor, y: Tensor) -> Tensor:
            angles = 1 - cosine_similarity(prototypes, anchors).mean()
            return client.cross_entropy(model(x), y) + self.lam * angles

        second = make_optimiser("adam", [prototypes], self.prototype_lr, 0.0, 0.0)
        mean = client.fit(loss, client.model.features, second=second)
        trained = {"classes": received["classes"], "prototypes": to_cpu(prototypes)}
        reply = trained | {"counts": client.train.class_counts(client.num_classes)}
        return Step(received | snapshot("model", client.model) | trained, reply, {"loss": mean})

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Weight a client's prototypes by its class shares, w_ij = n_ij/n_i, or equally."""
        counts = reply["counts"]
        shares = counts / counts.sum() if self.weighting == "shares" else torch.ones_like(counts)
        return by_class(reply, server, weights=shares)

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by the negative distances to the client's own prototypes."""
        return {"logits": self.network(client, state)(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Combine the loaded features with the prototypes of the state."""
        return SplitModel(client.model.features, Nearness(on_device(state["prototypes"], client.device)))

    def _first(self, num_classes: int, feature_dim: int) -> Tensors:
        anchors = equally_spread(num_classes, feature_dim, self.seed)
        return {"classes": torch.arange(num_classes), "prototypes": anchors}


class Nearness(nn.Module):
    """Head −‖z − p_j‖ with trainable prototypes p (K, d)."""

    def __init__(self, prototypes: Tensor) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(prototypes.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Map features (B, d) to logits (B, K)."""
        return -torch.cdist(z.float(), self.prototypes, compute_mode="donot_use_mm_for_euclid_dist")
