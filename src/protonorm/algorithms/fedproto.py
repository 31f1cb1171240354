"""FedProto: clients pull their features towards the average prototype of each class.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

server state:    classes (K',), prototypes (K', d) of the classes received so far
server message:  the same
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d); counts (K_i,) if weighted
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from protonorm.algorithms.parts.messages import class_counts, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import (
    AveragedByClass,
    RunningMeans,
    class_means,
    prototype_scores,
    targets,
)
from protonorm.core import Client, Schema, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative, Positive
from protonorm.geometry.losses import prototype_loss
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedProto(AveragedByClass):
    """Training towards the average prototypes of all clients."""

    lam: NonNegative = 1.0  # λ, Eq. 4
    gamma: Positive = 1.0  # γ of the paper's Table 5: the target is γ·c_j; 1 is FedProto as published
    measured: Literal["after", "during"] = "after"  # prototypes of the trained model, or running means during training
    weighting: Literal["clients", "samples"] = "clients"  # Eq. 7, or by n_ij as intended by Eq. 3

    rules: ClassVar[tuple[str, ...]] = ("global", "local", "logits", "joint")
    headline: ClassVar[str] = "global"

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send prototypes, the server from round 1 on; clients add counts if weighted."""
        counts = class_counts("K_i", least=1) if self.weighting == "samples" else {}
        return make_schema(task, up=(({**class_vectors("K_i"), **counts},),), down=(optional(class_vectors("K'")),))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR (Eqs. 4, 5), then compute the local prototypes (Eq. 2)."""
        model = client.load(state)
        prototypes, known = targets(message, client)  # (K, d), (K,)
        running = RunningMeans(client, "prototypes", client.feature_dim)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            if self.measured == "during":
                running.add(z.detach(), y)
            ce = client.cross_entropy(model.head(z), y)
            return ce + self.lam * prototype_loss(z, y, self.gamma * prototypes, known)

        mean = client.fit(loss, model)
        own = running.result() if self.measured == "during" else class_means(client, model)
        said = own | {"counts": client.train.class_counts(client.num_classes)[own["classes"]]}
        return Step(snapshot("model", model) | own, said if self.weighting == "samples" else own, {"loss": mean})

    scores = prototype_scores
