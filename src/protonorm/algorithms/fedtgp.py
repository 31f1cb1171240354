"""Methods whose server trains a generator of prototypes on those of the clients.

FedTGP: the server trains prototypes that keep an adaptive margin to those of other classes.
Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data and
Model Heterogeneity in Federated Learning", AAAI 2024.
FedORGP: the server trains prototypes that are orthogonal to the clients' prototypes of other classes.
Guo et al., "FedORGP: Guiding Heterogeneous Federated Learning with Orthogonality Regularization on Global
Prototypes", arXiv 2502.16119, 2025.

server state:    generator.*: an embedding (K, d), and two layers d -> h -> d
server message:  classes (K,), prototypes (K, d) of all classes, of FedORGP unit vectors; empty before the first round
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d)
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from protonorm.algorithms.parts.prototypes import Prototypes, received_prototypes, stack_prototypes, train_prototypes
from protonorm.algorithms.parts.training import descend, shuffled
from protonorm.core import Client, Server, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Positive
from protonorm.geometry import prototypes as geometry
from protonorm.geometry.losses import cosines, margin_loss, prototype_loss
from protonorm.tensors import Tensors, restore, snapshot

MIDDLE, SOFTNESS = 0.3, 0.5  # of the adaptive weights in the authors' code
NARROWEST = 64  # with fewer ReLUs all may be inactive for several classes, whose prototypes then coincide permanently


class GeneratedPrototypes(Prototypes):
    """Method whose server trains a generator of prototypes on those of the clients."""

    known: ClassVar[str] = "K"

    if TYPE_CHECKING:  # fields of the method
        hidden: int | None  # units of the generator's hidden layer
        server_epochs: int  # passes over the clients' prototypes

    def init_server(self, server: Server) -> Step:
        """Create the generator; send nothing before it is trained."""
        return Step(snapshot("generator", self.generator(server)), {})

    def train_generator(
        self, server: Server, state: Tensors, clients: tuple[Tensor, Tensor], loss: Callable[..., Tensor]
    ) -> Step:
        """Train the generator with a loss of the clients' points (B, d), labels (B,) and its ĉ (K, d); publish ĉ."""
        generator, classes = self.generator(server), torch.arange(server.num_classes)
        restore("generator", generator, state)
        batches = shuffled(*clients, self.server_epochs, server.batch_size)
        optimiser = torch.optim.SGD(generator.parameters(), server.lr)
        mean = descend(lambda points, y: loss(points, y, generator(classes)), batches, optimiser, server)
        prototypes = {"classes": classes, "prototypes": generator(classes).detach()}
        return Step(snapshot("generator", generator), prototypes, {"generator.loss": mean})

    def generator(self, server: Server) -> nn.Sequential:
        """Build the network that maps class indices to prototypes, j -> ĉ_j; its hidden layer has max(d, 64) units."""
        width = server.feature_dim
        hidden = self.hidden or max(width, NARROWEST)
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        return nn.Sequential(nn.Embedding(server.num_classes, width), first, nn.ReLU(), second)


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


@dataclass(frozen=True, config=STRICT)
class FedORGP(GeneratedPrototypes):
    """Training towards the directions of prototypes that the server keeps orthogonal."""

    lam: NonNegative = 10.0  # λ_c of the clients' loss
    server_lam: NonNegative = 1.0  # λ_s, weight of the angle to prototypes of the same class in the server's loss …
    gamma: NonNegative = 10.0  # γ, … and of the angle to prototypes of other classes
    server_epochs: Count = 1  # S_e, passes over the clients' prototypes
    adaptive: bool = False  # whether less orthogonal pairs weigh more, as in later versions of the authors' code
    hidden: Count | None = None  # units of the generator's hidden layer; None is d, as published, but at least 64

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λ_c·mean(1 − cos(z, ĉ_y)), then compute the local prototypes."""
        model = client.load(state)
        prototypes, known = received_prototypes(message, client)  # (K, d), (K,)

        def loss(z: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model.head(z), y) + self.lam * angle_loss(z, y, prototypes, known)

        return train_prototypes(client, model, loss)

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Train the generator with λ_s·intra + γ·inter of the clients' prototypes; publish its unit vectors."""

        def loss(points: Tensor, y: Tensor, prototypes: Tensor) -> Tensor:
            intra, inter = orthogonality(points, y, prototypes, self.adaptive)
            return self.server_lam * intra + self.gamma * inter

        step = self.train_generator(server, state, stack_prototypes(replies, server), loss)
        return step._replace(message=step.message | {"prototypes": normalize(step.message["prototypes"])})


def angle_loss(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Average 1 − cos(z_b, ĉ_y) over a batch: z (B, d), y (B,), ĉ (K, d); zero for classes not known (K,)."""
    cosine = (normalize(z) * normalize(prototypes)[y]).sum(dim=1)  # (B,)
    return torch.where(known[y], 1 - cosine, 0.0).sum() / len(y)


def orthogonality(points: Tensor, labels: Tensor, prototypes: Tensor, adaptive: bool) -> tuple[Tensor, Tensor]:
    """Average 1 − cos(c, ĉ_y), and |cos(c, ĉ_k)| over the classes k ≠ y: points c (B, d), labels y (B,), ĉ (K, d).

    If adaptive, a term is weighted by 1 + σ((a − 0.3)/0.5), where a is |cos|, or its mean over k ≠ y in the first
    average.
    """
    cosine, own = cosines(points, prototypes), one_hot(labels, len(prototypes)).bool()  # (B, K)
    others = max(len(prototypes) - 1, 1)
    intra, inter = 1 - cosine[own], cosine.abs().masked_fill(own, 0.0)  # (B,), (B, K)
    if adaptive:
        intra = intra * _weight(inter.sum(dim=1) / others)
        inter = inter * _weight(inter)
    return intra.mean(), inter.sum(dim=1).mean() / others


def _weight(cosine: Tensor) -> Tensor:
    return 1 + ((cosine - MIDDLE) / SOFTNESS).sigmoid()
