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

import torch
from torch import Tensor

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import class_means, prototype_scores, stack_prototypes, targets
from protonorm.algorithms.parts.server_training import descend, prototype_generator, shuffled
from protonorm.core import Algorithm, Client, Schema, Server, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Positive
from protonorm.geometry import prototypes as geometry
from protonorm.geometry.losses import margin_loss, prototype_loss
from protonorm.tensors import Tensors, restore, snapshot


@dataclass(frozen=True, config=STRICT)
class FedTGP(Algorithm):
    """Training towards prototypes that the server trains to be separated."""

    lam: NonNegative = 1.0  # λ of the clients' loss
    gamma: Positive = 1.0  # γ of the ProtoNorm paper's Table 5: the target is γ·ĉ_j; 1 is FedTGP as published
    tau: Positive = 100.0  # τ, the largest margin
    server_epochs: Count = 100  # S, passes over the clients' prototypes
    hidden: Count | None = None  # units of the generator's hidden layer; None is d, as published, but at least 64
    measured: Literal["after", "before"] = "after"  # "before" training reproduces the authors' stale prototypes

    rules: ClassVar[tuple[str, ...]] = ("global", "local", "logits", "joint")
    headline: ClassVar[str] = "global"

    def schema(self, task: Task) -> Schema:
        """Return the schema: clients send prototypes of their classes, the server from round 1 on of all classes."""
        return make_schema(task, up=((class_vectors("K_i"),),), down=(optional(class_vectors("K")),))

    def init_server(self, server: Server) -> Step:
        """Create the generator; send nothing before it is trained."""
        return Step(snapshot("generator", prototype_generator(server, self.hidden)), {})

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR towards γ·ĉ_j, as FedProto does, then compute the local prototypes."""
        model = client.load(state)
        prototypes, known = targets(message, client)  # (K, d), (K,)
        before = class_means(client, model) if self.measured == "before" else None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            ce = client.cross_entropy(model.head(z), y)
            return ce + self.lam * prototype_loss(z, y, self.gamma * prototypes, known)

        mean = client.fit(loss, model)
        own = before or class_means(client, model)
        return Step(snapshot("model", model) | own, own, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Train the generator to be near the prototypes of its class and far from others; publish its prototypes."""
        vectors, labels = stack_prototypes(replies, server)  # (N, d), (N,)
        margin = adaptive_margin(vectors, labels, server.num_classes, self.tau)
        generator, classes = prototype_generator(server, self.hidden), torch.arange(server.num_classes)
        restore("generator", generator, state)

        def loss(points: Tensor, y: Tensor) -> Tensor:
            return margin_loss(points, y, generator(classes), margin)

        batches = shuffled(vectors, labels, self.server_epochs, server.batch_size)
        mean = descend(loss, batches, torch.optim.SGD(generator.parameters(), server.lr), server)
        said = {"classes": classes, "prototypes": generator(classes).detach()}
        return Step(snapshot("generator", generator), said, {"generator.loss": mean, "generator.margin": margin})

    scores = prototype_scores


def adaptive_margin(vectors: Tensor, labels: Tensor, num_classes: int, tau: float) -> float:
    """Compute δ, the largest nearest-neighbour distance of class means, at most τ; τ with fewer than two classes."""
    classes, means = geometry.class_means(vectors, labels, num_classes)
    return min(float(geometry.margins(means).max()), tau) if len(classes) > 1 else tau
