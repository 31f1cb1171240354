"""ProtoNorm: the server aligns the average prototypes on the unit sphere (PA), the clients upscale them (PU).

Lee et al., "Heterogeneous Federated Learning with Prototype Alignment and Upscaling", ICCV 2025.

server state:    classes (K',), prototypes (K', d) of the classes received so far, unit vectors; gamma () if measured
server message:  the same
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d)
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import normalize

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import AveragedByClass, Prototypes, received_prototypes, train_prototypes
from protonorm.core import Client, Contribution, Field, Schema, Server, SplitModel, Step, Sums, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative, Positive
from protonorm.geometry.alignment import align, choose
from protonorm.geometry.losses import class_euclidean, prototype_loss
from protonorm.geometry.sphere.energy import DEFAULT_SCHEDULE, Schedule
from protonorm.tensors import Tensors

# γ from the paper's grid search; spiral's is from its figure, fashion's is ours (docs/algorithms/protonorm.md).
GAMMA = {
    "cifar10": 100.0,
    "cifar100": 200.0,
    "flowers102": 200.0,
    "tinyimagenet": 400.0,
    "spiral": 10.0,
    "fashion": 300.0,
}
DEFAULT_GAMMA = 100.0
AUTO = "auto"
SHORTEST = 1e-3  # lower bound of the prototypes' mean norm
PULL = 10.0  # weight of cos(z, ĉ) in the loss at a measured γ; derived in docs/algorithms/protonorm.md


@dataclass(frozen=True, config=STRICT)
class ProtoNorm(Prototypes, AveragedByClass):
    """Training towards aligned and upscaled prototypes."""

    lam: NonNegative = 1.0  # λ, Eq. 4; the authors' code has 10
    gamma: Positive | Literal["auto"] | None = None  # γ, Eq. 15; None is the paper's value for the data set
    # "auto" measures it once, from the norms of the first round's prototypes
    upscaling: bool = True  # PU; off is γ = 1
    alignment: Literal["paper", "exact", "descent", "auto", "normalise", "none"] = "paper"  # PA: the solver
    # PA: Algorithm 1 or a better solver; "normalise" only scales prototypes to unit length, "none" keeps the average
    s: NonNegative = 0.0  # Riesz exponent; 0 is the paper's logarithmic energy, Eq. 10
    schedule: Schedule = DEFAULT_SCHEDULE  # step sizes and stopping rule of Algorithm 1: η, μ, T, ε, …
    distance: Literal["samples", "classes"] = "samples"  # R: of sample features as coded, or class means as printed
    measured: Literal["after", "before"] = "after"  # "before" training reproduces the authors' stale prototypes
    initial: Literal["none", "random"] = "none"  # prototypes before round 1

    headline: ClassVar[str] = "nearest-global"

    @model_validator(mode="after")
    def _refuse_what_cannot_be_measured(self) -> Self:
        conflicts = {
            "lam=0": (self.lam == 0, "nothing is pulled"),
            "upscaling=false": (not self.upscaling, "γ is not used"),
            "distance=classes": (self.distance == "classes", "the pull of that distance does not depend on γ"),
            "alignment=none": (self.alignment == "none", "prototypes are not of unit length"),
            "initial=random": (self.initial == "random", "features are pulled before they have been measured"),
            "measured=before": (self.measured == "before", "the first prototypes are those of untrained networks"),
        }
        for setting, (conflicting, reason) in conflicts.items():
            if self.gamma == AUTO and conflicting:
                raise ValueError(f"gamma must be a number with {setting}, got auto: {reason}.")
        return self

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Fill in the data set's γ if it is not set."""
        return self if self.gamma is not None else replace(self, gamma=GAMMA.get(dataset, DEFAULT_GAMMA))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise, before training starts, if the solver cannot align the prototypes."""
        if self.alignment not in ("none", "normalise"):
            choose(self.alignment, task.num_classes, task.feature_dim)

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send prototypes; the server from round 1, or of all classes from the start."""
        scale = {"gamma": Field(())} if self.gamma == AUTO else {}
        down = optional(class_vectors("K'") | scale) if self.initial == "none" else (class_vectors("K"),)
        return make_schema(task, up=((class_vectors("K_i"),),), down=(down,))

    def init_server(self, server: Server) -> Step:
        """Return an empty message before the first round, or aligned random vectors."""
        if self.initial == "none":
            return Step({}, {})
        vectors = torch.randn(server.num_classes, server.feature_dim)
        return self._publish({"classes": torch.arange(server.num_classes), "prototypes": vectors}, server)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR towards γ·ĉ_j (Eqs. 4, 15), then compute the local prototypes (Eq. 2)."""
        model = client.load(state)
        prototypes, known = received_prototypes(message, client)  # (K, d), (K,)
        upscaled = self._upscaling_factor(message) * prototypes if self.upscaling else prototypes
        regulariser = prototype_loss if self.distance == "samples" else class_euclidean

        def loss(z: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model.head(z), y) + self.lam * regulariser(z, y, upscaled, known)

        return train_prototypes(client, model, loss, self.measured)

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Scatter a client's prototypes to all classes; a measured γ also needs their norms."""
        share = super().contribution(server, state, reply)
        if self.gamma != AUTO:
            return share
        lengths = reply["prototypes"].double().norm(dim=1)  # (K_i,)
        return share._replace(totals={"length": lengths.sum(), "count": torch.tensor(len(lengths))})

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Average per class (Eq. 7), then align (Algorithm 1)."""
        step = self._publish(self.average(server, state, sums), server)
        if self.gamma != AUTO:
            return step
        count = int(sums.totals.get("count", 0))
        if "gamma" not in state and not count:
            return Step({}, {})  # no prototypes received yet
        gamma = state.get("gamma")
        if gamma is None:
            gamma = torch.tensor(self.measured_gamma(float(sums.totals["length"]) / count, server.feature_dim))
        scale = {"gamma": gamma}
        return Step(step.state | scale, step.message | scale, {**step.metrics, "gamma": float(gamma)}, step.figures)

    def measured_gamma(self, length: float, width: int) -> float:
        """Compute the γ at which cos(z, ĉ) has the weight 2λγ‖z‖/d = 10 in the loss, for features z of a given norm."""
        return PULL * width / (2 * self.lam * max(length, SHORTEST))

    def _publish(self, prototypes: Tensors, server: Server) -> Step:
        vectors = prototypes["prototypes"]  # (K', d)
        if self.alignment == "none" or not len(vectors):
            return Step(prototypes, prototypes)
        if self.alignment == "normalise":
            published = prototypes | {"prototypes": normalize(vectors)}
            return Step(published, published)
        aligned = align(vectors, self.alignment, s=self.s, schedule=self.schedule, trace=server.round <= 1)
        published = prototypes | {"prototypes": aligned.prototypes}
        metrics = {"alignment.steps": float(aligned.steps)}
        if math.isfinite(aligned.energy):  # may overflow for large s
            metrics["alignment.energy"] = aligned.energy
        figures = {} if aligned.distances is None else {"alignment.distances": aligned.distances}
        return Step(published, published, metrics, figures)

    def _upscaling_factor(self, message: Tensors) -> float:
        """Return γ; a measured γ arrives with the prototypes."""
        if self.gamma == AUTO:
            return float(message["gamma"]) if "gamma" in message else 1.0  # no prototypes received yet
        if not isinstance(self.gamma, float):
            raise ValueError("ProtoNorm has no gamma: give one, or let adapted(dataset, networks) take the paper's.")
        return self.gamma
