"""FedHP: clients train prototypes in the place of a head; anchors on the sphere keep their directions apart.

Fonio, Polato and Esposito, "FedHP: Federated Learning with Hyperspherical Prototypical Regularization", ESANN 2024.

server remembers: classes (K,) all, prototypes (K, d)
server says:      the same
client remembers: model.* (its head is not used), anchors (K, d) unit vectors, and the others as the server
client says:      classes (K,) all, prototypes (K, d), counts (K,) of its samples by class
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from protonorm.algorithms.parts.messages import class_counts, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import average_prototypes
from protonorm.core import Algorithm, Client, Schema, Server, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.training import make_optimiser
from protonorm.core.types import STRICT, NonNegative, Positive, Seed
from protonorm.geometry.directions import equally_spread
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedHP(Algorithm):
    """Train features and prototypes with the cross-entropy of their distances."""

    lam: NonNegative = 0.1  # λ, weight of the prototypes' angles to the anchors
    prototype_lr: Positive = 0.005  # of the Adam that trains the prototypes
    weighting: Literal["shares", "clients"] = "shares"  # of a client's row: n_ij/n_i, or all alike
    seed: Seed = 0  # of the anchors

    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")

    def schema(self, task: Task) -> Schema:
        """Both sides send prototypes of all classes; clients add counts."""
        own = {**class_vectors("K"), **class_counts("K", least=0)}
        return make_schema(task, up=((own,),), down=((class_vectors("K"),),))

    def init_server(self, server: Server) -> Step:
        """Begin with prototypes on the anchors."""
        said = self._first(server.num_classes, server.feature_dim)
        return Step(said, said)

    def init_client(self, client: Client) -> Tensors:
        """Begin with the client's own model, with everybody's anchors, and with prototypes on these."""
        first = self._first(client.num_classes, client.feature_dim)
        return snapshot("model", client.model) | first | {"anchors": first["prototypes"]}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over the average prototypes, row j for class j in whatever order they came."""
        order = message["classes"].argsort()
        return state | {name: rows[order] for name, rows in message.items()}

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and prototypes with CE(−‖z − p_j‖ over j, y) + λ·mean_j(1 − cos(p_j, a_j))."""
        held = self.receive(client, state, message)
        client.load(held)
        model, anchors = self.network(client, held), held["anchors"].to(client.device)
        prototypes = model.get_parameter("head.prototypes")

        def loss(x: Tensor, y: Tensor) -> Tensor:
            turned = 1 - cosine_similarity(prototypes, anchors).mean()
            return client.cross_entropy(model(x), y) + self.lam * turned

        second = make_optimiser("adam", [prototypes], self.prototype_lr, 0.0, 0.0)
        mean = client.fit(loss, client.model.features, second=second)
        own = {"classes": held["classes"], "prototypes": prototypes.detach().cpu()}
        said = own | {"counts": client.train.class_counts(client.num_classes)}
        return Step(held | snapshot("model", client.model) | own, said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average per class, p_j = Σ_i w_ij p_ij / Σ_i w_ij; a class that nobody has keeps its last prototype."""
        weigh = by_shares if self.weighting == "shares" else all_alike
        prototypes = average_prototypes(state, map(weigh, replies), server)
        return Step(prototypes, prototypes)

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by how near the client's own prototypes are."""
        return {"logits": self.network(client, state)(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Put the remembered prototypes behind the loaded features."""
        return SplitModel(client.model.features, Nearness(state["prototypes"]).to(client.device))

    def _first(self, num_classes: int, feature_dim: int) -> Tensors:
        anchors = equally_spread(num_classes, feature_dim, self.seed)
        return {"classes": torch.arange(num_classes), "prototypes": anchors}


class Nearness(nn.Module):
    """The head −‖z − p_j‖, with prototypes p (K, d) that can be trained."""

    def __init__(self, prototypes: Tensor) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(prototypes.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Map features (B, d) to logits (B, K)."""
        return -torch.cdist(z.float(), self.prototypes, compute_mode="donot_use_mm_for_euclid_dist")


def by_shares(reply: Tensors) -> Tensors:
    """Take a client's prototypes of the classes that it has, weighted by their shares of its samples, n_ij/n_i."""
    counts = reply["counts"]
    held = counts > 0
    rows = {"classes": reply["classes"][held], "prototypes": reply["prototypes"][held]}
    return rows | {"counts": counts[held] / counts.sum()}


def all_alike(reply: Tensors) -> Tensors:
    """Take all of a client's prototypes, without weights."""
    return {"classes": reply["classes"], "prototypes": reply["prototypes"]}
