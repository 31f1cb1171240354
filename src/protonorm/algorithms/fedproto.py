"""Methods whose clients pull their features towards the average prototype of each class.

FedProto: all of it.
Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.
TinyProto: a few positions of it, which each class has to itself or shares with few others.
Lee and Choi, "Communication-Efficient Heterogeneous Federated Learning with Sparse Prototypes in Resource-Constrained
Environments", AAAI 2026.

server state:    classes (K',), prototypes (K', d) of the classes received so far; of TinyProto partial (K', s)
server message:  the same
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d), of TinyProto partial (K_i, s); counts (K_i,) if weighted
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protonorm.algorithms.parts.messages import class_counts, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import (
    AveragedByClass,
    Prototypes,
    keep_missing,
    means_by_class,
    received_prototypes,
    scatter_vectors,
    train_prototypes,
)
from protonorm.core import Client, Schema, Server, Step, Sums, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Fraction, NonNegative, Positive, Seed
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


@dataclass(frozen=True, config=STRICT)
class TinyProto(AveragedByClass, Prototypes):
    """Training towards prototypes of which each class has a few positions only."""

    lam: NonNegative = 1.0  # λ
    rho: Fraction = 0.1  # ρ, share of the positions that a class has
    scaling: Literal["weighted", "mean", "sum"] = "weighted"  # Σ n c/Σ n, or as μ times a mean or a sum of n c
    mu: Positive = 0.0015  # μ of the last two
    outside: Literal["ignore", "zero"] = "ignore"  # a class's other positions: left alone, or drawn to zero
    seed: Seed = 0  # of the positions

    averaged: ClassVar[str] = "partial"
    headline: ClassVar[str] = "nearest-local"

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send s positions of prototypes, the server from round 1 on."""
        width = self.positions(task.num_classes, task.feature_dim).shape[1]
        counts = class_counts("K_i", least=1) if self.scaling == "weighted" else {}
        up, down = class_vectors("K_i", "partial", "s"), class_vectors("K'", "partial", "s")
        schema = make_schema(task, up=(({**up, **counts},),), down=(optional(down),))
        return replace(schema, exact={**schema.exact, "s": width})

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR on the positions of each class, and send the own prototypes there, perhaps times n_ij."""
        model = client.load(state)
        positions = self.positions(client.num_classes, client.feature_dim).to(client.device)  # (K, s)
        vectors, known = scatter_vectors(message, "partial", positions.shape[1], client)  # (K, s), (K,)
        targets = vectors.new_zeros(client.num_classes, client.feature_dim).scatter(1, positions, vectors)

        def loss(z: Tensor, y: Tensor) -> Tensor:
            if self.outside == "zero":
                distance = prototype_loss(z, y, targets, known)
            else:
                distance = prototype_loss(z.gather(1, positions[y]), y, vectors, known)
            return client.cross_entropy(model.head(z), y) + self.lam * distance

        step = train_prototypes(client, model, loss)
        classes, prototypes = step.message["classes"], step.message["prototypes"]
        partial = prototypes.gather(1, positions.cpu()[classes])
        counts = client.train.class_counts(client.num_classes)[classes]  # n_ij
        weighted = self.scaling == "weighted"
        scaled = {"partial": partial, "counts": counts} if weighted else {"partial": partial * counts[:, None]}
        return step._replace(message={"classes": classes, **scaled})

    def average(self, server: Server, state: Tensors, sums: Sums) -> Tensors:
        """Return classes (K',) and the mean or sum (K', s) of each, scaled."""
        means = means_by_class(sums, self.positions(server.num_classes, server.feature_dim).shape[1], "partial")
        if self.scaling != "weighted" and "partial" in sums.means:
            clients = sums.weight_of("partial")[means["classes"]] if self.scaling == "sum" else torch.tensor(1.0)
            means["partial"] = (means["partial"] * (self.mu * clients).float().view(-1, 1)).to(means["partial"])
        return keep_missing(state, means, server, "partial")

    def prototypes_of(self, client: Client, message: Tensors) -> Tensors:
        """Return the server's prototypes (K', d) with zeros at the positions that their classes do not have."""
        if "partial" not in message:
            return message
        classes, values = message["classes"], message["partial"]  # wherever they are
        positions = self.positions(client.num_classes, client.feature_dim).to(classes.device, non_blocking=True)
        dense = values.new_zeros(len(classes), client.feature_dim).scatter(1, positions[classes], values)
        return {"classes": classes, "prototypes": dense}

    def positions(self, num_classes: int, width: int) -> Tensor:
        """Choose s of d positions for each class, (K, s), in blocks; every block belongs to equally many classes.

        The blocks of class k are those of class 0 moved on by k, so that no two classes have all in common.
        """
        blocks = min(num_classes, width)
        size, owned = width // blocks, max(1, int(self.rho * blocks + 1e-9))
        first = torch.randperm(blocks, generator=torch.Generator().manual_seed(self.seed))[:owned]
        chosen = (torch.arange(num_classes).unsqueeze(1) + first) % blocks  # (K, owned)
        return (chosen.unsqueeze(2) * size + torch.arange(size)).flatten(1).sort(1).values
