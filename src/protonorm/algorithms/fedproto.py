"""FedProto: clients pull their features towards the average prototype of each class.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

server state:    classes (K',), prototypes (K', d) of the classes received so far
server message:  the same
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d); counts (K_i,) if weighted
"""

from typing import ClassVar, Literal

from torch import Tensor

from protonorm.algorithms.parts.messages import class_counts, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import AveragedByClass, Prototypes, received_prototypes, train_prototypes
from protonorm.core import Client, Schema, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative, Positive
from protonorm.geometry.losses import prototype_loss
from protonorm.tensors import Tensors


@dataclass(frozen=True, config=STRICT)
class FedProto(Prototypes, AveragedByClass):
    """Training towards the average prototypes of all clients."""

    lam: NonNegative = 1.0  # λ, Eq. 4
    gamma: Positive = 1.0  # γ of the paper's Table 5: the target is γ·c_j; 1 is FedProto as published
    measured: Literal["after", "during"] = "after"  # prototypes of the trained model, or running means during training
    weighting: Literal["clients", "samples"] = "clients"  # Eq. 7, or by n_ij as intended by Eq. 3

    headline: ClassVar[str] = "nearest-global"

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send prototypes, the server from round 1 on; clients add counts if weighted."""
        if self.weighting == "clients":
            return super().schema(task)
        reply = {**class_vectors("K_i"), **class_counts("K_i", least=1)}
        return make_schema(task, up=((reply,),), down=(optional(class_vectors("K'")),))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR (Eqs. 4, 5), then compute the local prototypes (Eq. 2)."""
        model = client.load(state)
        prototypes, known = received_prototypes(message, client)  # (K, d), (K,)

        def loss(z: Tensor, y: Tensor) -> Tensor:
            ce = client.cross_entropy(model.head(z), y)
            return ce + self.lam * prototype_loss(z, y, self.gamma * prototypes, known)

        step = train_prototypes(client, model, loss, self.measured)
        if self.weighting == "clients":
            return step
        counts = client.train.class_counts(client.num_classes)[step.message["classes"]]  # n_ij
        return step._replace(message=step.message | {"counts": counts})
