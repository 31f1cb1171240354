"""FedDistill: clients distil the average logits of each class.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data", NeurIPS 2018 workshop.

server state:    classes (K',), logits (K', K) of the classes received so far
server message:  the same
client state:    model.*
client message:  classes (K_i,), logits (K_i, K)
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import AveragedByClass, RunningMeans, lay_out, mean_outputs
from protonorm.core import Client, Schema, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedDistill(AveragedByClass):
    """Training with labels and with the average logits of each class."""

    lam: NonNegative = 1.0  # weight of the distillation; γ in the ProtoNorm paper
    measured: Literal["after", "during"] = "after"  # logits of the trained model, or running means during training

    averaged: ClassVar[str] = "logits"

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send logits by class, the server from round 1 on."""
        up, down = class_vectors("K_i", "logits", "K"), class_vectors("K'", "logits", "K")
        return make_schema(task, up=((up,),), down=(optional(down),))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE(o, y) + λ·CE(o, softmax ō_y), then compute the mean logits of each class."""
        model = client.load(state)
        means, known = lay_out(message, "logits", client.num_classes, client)  # (K, K), (K,)
        taught = softmax(means, dim=1)
        running = RunningMeans(client, "logits", client.num_classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = model(x)
            if self.measured == "during":
                running.add(logits.detach(), y)
            return client.cross_entropy(logits, y) + self.lam * distillation_loss(logits, y, taught, known)

        mean = client.fit(loss, model)
        during = self.measured == "during"
        own = running.result() if during else mean_outputs(client, model, "logits", client.num_classes)
        return Step(snapshot("model", model), own, {"loss": mean})


def distillation_loss(logits: Tensor, y: Tensor, taught: Tensor, known: Tensor) -> Tensor:
    """Average −Σ_k t_k log p_k over a batch: logits (B, K), labels y (B,), class targets t (K, K).

    Samples of classes that are not known (K,) contribute zero but are counted.
    """
    each = -(taught[y] * log_softmax(logits, dim=1)).sum(dim=1)  # (B,)
    return torch.where(known[y], each, 0.0).sum() / len(y)
