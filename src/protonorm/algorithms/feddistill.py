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
from dataclasses import replace
from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, softmax

from protonorm.core import Algorithm, Client, Server, SplitModel, Step
from protonorm.geometry.prototypes import average, class_sums, means_of
from protonorm.settings import STRICT, NonNegative
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedDistill(Algorithm):
    """Train towards the labels, and towards what all clients on average say of their class."""

    lam: NonNegative = 1.0  # weight of the distillation; the ProtoNorm paper calls it γ
    measured: Literal["after", "during"] = "after"  # logits of the trained model, or running means of its training

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE(o, y) + λ·CE(o, softmax ō_y), then measure the mean logits of each class."""
        model = client.load(state)
        taught, known = lay_out(message, client)  # (K, K), (K,)
        sums = torch.zeros(client.num_classes, client.num_classes, dtype=torch.float64, device=client.device)
        counts = torch.zeros(client.num_classes, dtype=torch.int64, device=client.device)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = model(x)
            if self.measured == "during":
                for total, more in zip((sums, counts), class_sums(logits.detach(), y, client.num_classes), strict=True):
                    total += more
            return cross_entropy(logits, y) + self.lam * distillation_loss(logits, y, taught, known)

        mean = client.fit(loss, model)
        if self.measured == "during":
            classes, means = means_of(sums, counts)
            own = {"classes": classes.cpu(), "logits": means.float().cpu()}
        else:
            own = mean_logits(client, model)
        return Step(snapshot("model", model), own, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average class by class over the clients that have it; a class that nobody sent keeps its last logits."""
        uploads = ((reply["classes"], reply["logits"]) for reply in replies)
        mean, seen = average(uploads, server.num_classes, server.num_classes)  # (K, K), (K,)
        if "logits" in state:
            missed = ~seen[state["classes"]]
            mean[state["classes"][missed]] = state["logits"][missed].to(mean.dtype)
            seen[state["classes"]] = True
        logits = {"classes": seen.nonzero().flatten(), "logits": mean[seen].float()}
        return Step(logits, logits)


def lay_out(message: Tensors, client: Client) -> tuple[Tensor, Tensor]:
    """Lay a message out over all classes: softmax of the logits (K, K), and which of them are known (K,)."""
    taught = torch.zeros(client.num_classes, client.num_classes, device=client.device)
    known = torch.zeros(client.num_classes, dtype=torch.bool, device=client.device)
    if "logits" in message:
        classes = message["classes"].to(client.device)
        taught[classes] = softmax(message["logits"].to(client.device), dim=1)
        known[classes] = True
    return taught, known


def distillation_loss(logits: Tensor, y: Tensor, taught: Tensor, known: Tensor) -> Tensor:
    """Average −Σ_k t_k log p_k over a batch: logits (B, K), y (B,), the targets t of the classes (K, K).

    Samples of classes that are not known (K,) add nothing but count.
    """
    each = -(taught[y] * log_softmax(logits, dim=1)).sum(dim=1)  # (B,)
    return torch.where(known[y], each, 0.0).sum() / len(y)


def mean_logits(client: Client, model: SplitModel) -> Tensors:
    """Average the logits of each class over the whole training part, in evaluation mode: as features of K numbers."""
    means = replace(client, feature_dim=client.num_classes).class_means(SplitModel(model, nn.Identity()))
    return {"classes": means["classes"], "logits": means["prototypes"]}
