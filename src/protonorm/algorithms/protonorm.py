"""ProtoNorm: the server spreads the average prototypes on the unit sphere (PA), the clients upscale them (PU).

Lee et al., "Heterogeneous Federated Learning with Prototype Alignment and Upscaling", ICCV 2025.

server remembers: classes (K',), prototypes (K', d) of the classes seen so far, unit vectors
server says:      the same
client remembers: model.*, classes (K_i,), prototypes (K_i, d)
client says:      classes (K_i,), prototypes (K_i, d)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Ge, Lt
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from protonorm.core import Algorithm, Client, Server, Step
from protonorm.exchange import joined, prototype_scores, targets
from protonorm.geometry.alignment import align
from protonorm.geometry.prototypes import class_euclidean, prototype_loss
from protonorm.settings import STRICT, Count, Fraction, NonNegative, Positive
from protonorm.tensors import Tensors, snapshot

# γ found by the paper's grid search; spiral's is that of its figure, fashion's is ours (docs/algorithms/protonorm.md).
GAMMA = {
    "cifar10": 100.0,
    "cifar100": 200.0,
    "flowers102": 200.0,
    "tinyimagenet": 400.0,
    "spiral": 10.0,
    "fashion": 300.0,
}
GAMMA_ELSEWHERE = 100.0


@dataclass(frozen=True, config=STRICT)
class ProtoNorm(Algorithm):
    """Train towards well separated prototypes."""

    lam: NonNegative = 1.0  # λ, Eq. 4; the authors' code has 10
    gamma: Positive | None = None  # γ, Eq. 15; None takes the paper's value for the data set
    upscaling: bool = True  # PU; off is γ = 1
    alignment: Literal["paper", "exact", "descent", "auto", "normalise", "none"] = "paper"
    # PA: Algorithm 1 or a better solver; "normalise" only brings prototypes to unit length, "none" leaves the average
    s: NonNegative = 0.0  # Riesz exponent; 0 is the paper's logarithmic energy, Eq. 10
    eta: Positive = 0.1  # η, Eq. 12
    mu: Annotated[float, Ge(0), Lt(1)] = 0.9  # μ, Eq. 12
    decay: Fraction = 0.95  # of η …
    decay_every: Count = 10  # … after so many steps
    first_decay: Count = 1  # steps before the first decay: 1 as the authors' code, 10 as the paper
    steps: Count = 500  # T, Algorithm 1
    epsilon: Positive = 1e-4  # ε of the stopping rule
    patience: Count = 10  # steps in a row below ε
    stop: Literal["change", "rounding", "tangential"] = "change"  # "rounding" is the authors' code
    distance: Literal["samples", "classes"] = "samples"  # R: features of samples as coded, or class means as printed
    measured: Literal["after", "before"] = "after"  # "before" training repeats the authors' stale prototypes
    initial: Literal["none", "random"] = "none"  # prototypes before round 1

    rules: ClassVar[tuple[str, ...]] = ("global", "local", "logits")
    headline: ClassVar[str] = "global"

    def adapted(self, dataset: str) -> Self:
        """Take the γ of the data set where none is given."""
        return self if self.gamma else replace(self, gamma=GAMMA.get(dataset, GAMMA_ELSEWHERE))

    def init_server(self, server: Server) -> Step:
        """Say nothing before the first round, or the alignment of random vectors."""
        if self.initial == "none":
            return Step({}, {})
        drawn = torch.randn(server.num_classes, server.feature_dim)
        return self._publish({"classes": torch.arange(server.num_classes), "prototypes": drawn}, server)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR towards γ·ĉ_j (Eqs. 4, 15), then measure the local prototypes (Eq. 2)."""
        model = client.load(state)
        prototypes, known = targets(message, client)  # (K, d), (K,)
        upscaled = (self.gamma or 1.0) * prototypes if self.upscaling else prototypes
        regulariser = prototype_loss if self.distance == "samples" else class_euclidean
        before = client.class_means(model) if self.measured == "before" else None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            return cross_entropy(model.head(z), y) + self.lam * regulariser(z, y, upscaled, known)

        mean = client.fit(loss, model)
        own = before or client.class_means(model)
        return Step(snapshot("model", model) | own, own, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average per class (Eq. 7), then align (Algorithm 1)."""
        return self._publish(joined(state, replies, server), server)

    def _publish(self, prototypes: Tensors, server: Server) -> Step:
        vectors = prototypes["prototypes"]  # (K', d)
        if self.alignment == "none" or not len(vectors):
            return Step(prototypes, prototypes)
        if self.alignment == "normalise":
            said = prototypes | {"prototypes": normalize(vectors)}
            return Step(said, said)
        first = server.round <= 1
        aligned = align(
            vectors,
            self.alignment,
            s=self.s,
            eta=self.eta,
            mu=self.mu,
            decay=self.decay,
            decay_every=self.decay_every,
            first_decay=self.first_decay,
            steps=self.steps,
            epsilon=self.epsilon,
            patience=self.patience,
            stop=self.stop,
            trace=first,
        )
        said = prototypes | {"prototypes": aligned.prototypes}
        metrics = {"alignment.steps": float(aligned.steps), "alignment.energy": aligned.energy}
        traced = {} if aligned.distances is None else {"alignment.distances": aligned.distances}
        return Step(said, said, metrics, traced)

    scores = prototype_scores
