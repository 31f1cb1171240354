"""FedTGP: the server trains prototypes that keep an adaptive margin to those of other classes.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data and
Model Heterogeneity in Federated Learning", AAAI 2024.

server state:    generator.*: an embedding (K, d), and two layers d -> h -> d
server message:  classes (K,), prototypes (K, d) of all classes; empty before the first round
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from torch import Tensor

from protonorm.algorithms.parts.prototypes import received_prototypes, stack_prototypes, train_prototypes
from protonorm.algorithms.parts.training import GeneratedPrototypes
from protonorm.core import Client, Server, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Positive
from protonorm.geometry import prototypes as geometry
from protonorm.geometry.losses import margin_loss, prototype_loss
from protonorm.tensors import Tensors


@dataclass(frozen=True, config=STRICT)
class FedTGP(GeneratedPrototypes):
    """Training towards prototypes that the server trains to be separated."""

    lam: NonNegative = 1.0  # λ of the clients' loss
    gamma: Positive = 1.0  # γ of the ProtoNorm paper's Table 5: the target is γ·ĉ_j; 1 is FedTGP as published
    tau: Positive = 100.0  # τ, the largest margin
    server_epochs: Count = 100  # S, passes over the clients' prototypes
    hidden: Count | None = None  # units of the generator's hidden layer; None is d, as published, but at least 64
    measured: Literal["after", "before"] = "after"  # "before" training reproduces the authors' stale prototypes

    headline: ClassVar[str] = "nearest-global"

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR towards γ·ĉ_j, as FedProto does, then compute the local prototypes."""
        model = client.load(state)
        prototypes, known = received_prototypes(message, client)  # (K, d), (K,)

        def loss(z: Tensor, y: Tensor) -> Tensor:
            ce = client.cross_entropy(model.head(z), y)
            return ce + self.lam * prototype_loss(z, y, self.gamma * prototypes, known)

        return train_prototypes(client, model, loss, self.measured)

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Train the generator to be near the prototypes of its class and far from others; publish its prototypes."""
        vectors, labels = stack_prototypes(replies, server)  # (N, d), (N,)
        margin = adaptive_margin(vectors, labels, server.num_classes, self.tau)

        def loss(points: Tensor, y: Tensor, prototypes: Tensor) -> Tensor:
            return margin_loss(points, y, prototypes, margin)

        step = self.train_generator(server, state, (vectors, labels), loss)
        return step._replace(metrics={**step.metrics, "generator.margin": margin})


def adaptive_margin(vectors: Tensor, labels: Tensor, num_classes: int, tau: float) -> float:
    """Compute δ, the largest nearest-neighbour distance of class means, at most τ; τ with fewer than two classes."""
    classes, means = geometry.class_means(vectors, labels, num_classes)
    return min(float(geometry.margins(means).max()), tau) if len(classes) > 1 else tau
