"""FedProto: clients pull their features towards the average prototype of each class.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

server remembers: classes (K',), prototypes (K', d) of the classes seen so far
server says:      the same
client remembers: model.*, classes (K_i,), prototypes (K_i, d)
client says:      classes (K_i,), prototypes (K_i, d); counts (K_i,) if weighted
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.core import Algorithm, Client, Server, Step
from protonorm.exchange import joined, prototype_scores, targets
from protonorm.geometry.prototypes import class_sums, means_of, prototype_loss
from protonorm.settings import STRICT, NonNegative, Positive
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedProto(Algorithm):
    """Train towards the average prototypes of all clients."""

    lam: NonNegative = 1.0  # λ, Eq. 4
    gamma: Positive = 1.0  # γ of the paper's Table 5: the target is γ·c_j; 1 is FedProto as published
    measured: Literal["after", "during"] = "after"  # prototypes of the trained model, or running means of its training
    weighting: Literal["clients", "samples"] = "clients"  # Eq. 7, or by n_ij as Eq. 3 means

    rules: ClassVar[tuple[str, ...]] = ("global", "local", "logits")
    headline: ClassVar[str] = "global"

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR (Eqs. 4, 5), then measure the local prototypes (Eq. 2)."""
        model = client.load(state)
        prototypes, known = targets(message, client)  # (K, d), (K,)
        sums = torch.zeros(client.num_classes, client.feature_dim, dtype=torch.float64, device=client.device)
        counts = torch.zeros(client.num_classes, dtype=torch.int64, device=client.device)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            if self.measured == "during":
                for total, more in zip((sums, counts), class_sums(z.detach(), y, client.num_classes), strict=True):
                    total += more
            return cross_entropy(model.head(z), y) + self.lam * prototype_loss(z, y, self.gamma * prototypes, known)

        mean = client.fit(loss, model)
        if self.measured == "during":
            classes, means = means_of(sums, counts)
            own = {"classes": classes.cpu(), "prototypes": means.float().cpu()}
        else:
            own = client.class_means(model)
        said = own | {"counts": client.train.class_counts(client.num_classes)[own["classes"]]}
        return Step(snapshot("model", model) | own, said if self.weighting == "samples" else own, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average per class (Eq. 7); a class that nobody sent keeps its last prototype."""
        prototypes = joined(state, replies, server)
        return Step(prototypes, prototypes)

    scores = prototype_scores
