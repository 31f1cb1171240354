"""FedDistill: clients teach each other the mean logits of each class.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data", NeurIPS 2018 workshop.

server remembers: classes (K',), logits (K', K) of the classes seen so far
server says:      the same
client remembers: model.*
client says:      classes (K_i,), logits (K_i, K)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import RunningMeans, average_by_class, lay_out, mean_outputs
from protonorm.core import Algorithm, Client, Schema, Server, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedDistill(Algorithm):
    """Train towards the labels, and towards the average logits of each class."""

    lam: NonNegative = 1.0  # weight of the distillation; the ProtoNorm paper calls it γ
    measured: Literal["after", "during"] = "after"  # logits of the trained model, or running means of its training

    def schema(self, task: Task) -> Schema:
        """Both sides send logits by class, the server from round 1 on."""
        up, down = class_vectors("K_i", "logits", "K"), class_vectors("K'", "logits", "K")
        return make_schema(task, up=((up,),), down=(optional(down),))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE(o, y) + λ·CE(o, softmax ō_y), then measure the mean logits of each class."""
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

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average class by class over the clients that have it; a class that nobody sent keeps its last logits."""
        logits = average_by_class(state, replies, "logits", server.num_classes, server.num_classes)
        return Step(logits, logits)


def distillation_loss(logits: Tensor, y: Tensor, taught: Tensor, known: Tensor) -> Tensor:
    """Average −Σ_k t_k log p_k over a batch: logits (B, K), y (B,), the targets t of the classes (K, K).

    Samples of classes that are not known (K,) add nothing but count.
    """
    each = -(taught[y] * log_softmax(logits, dim=1)).sum(dim=1)  # (B,)
    return torch.where(known[y], each, 0.0).sum() / len(y)
