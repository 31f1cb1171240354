"""Methods whose clients share features and keep a head of their own.

FedPer: features and head are trained together.
Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
FedRep: the head is trained first, on fixed features, then the features under the fixed head.
Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.
FedPAC: as FedRep; features follow all clients' class means, and heads are mixed of those of similar clients.
Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.

server state:    model.features.* (floating tensors; without buffers if those are local); FedPAC: classes, prototypes
server message:  model.features.*; FedPAC adds all.head.*, all.variance, all.moments of the N clients of a round, and
                 classes (K',), prototypes (K', d), after the first round
client state:    model.*; FedPAC adds variance (), moments (K, d)
client message:  model.features.* as the server, num_examples (); FedPAC adds head.*, variance (), moments (K, d),
                 classes (K_i,), prototypes (K_i, d)
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from scipy.optimize import nnls
from torch import Tensor

from protonorm.algorithms.parts.heads import check_one_layer, head_of, replace_head
from protonorm.algorithms.parts.messages import AveragedFeatures, Buffers, class_vectors, head_slots, make_schema
from protonorm.algorithms.parts.prototypes import (
    by_class,
    class_means,
    keep_missing,
    means_by_class,
    received_prototypes,
)
from protonorm.algorithms.parts.training import fit_labels, fixed
from protonorm.core import Client, Contribution, Field, Schema, Server, SplitModel, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative
from protonorm.geometry.losses import prototype_loss
from protonorm.geometry.prototypes import class_sums
from protonorm.tensors import Tensors, prefixed, strip_prefix

OWN = ("variance", "moments")  # a client's statistics
RIDGE = 1e-9  # of the mean of a diagonal: clients that do not differ would leave the shares open


@dataclass(frozen=True, config=STRICT)
class FedPer(AveragedFeatures):
    """Federated averaging of features; each client keeps its head."""

    buffers: Buffers = "averaged"  # batch norm statistics

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received features and the own head with cross-entropy."""
        model = client.load(self.receive(client, state, message))
        return self.trained(client, model, fit_labels(client, model))


@dataclass(frozen=True, config=STRICT)
class FedRep(AveragedFeatures):
    """Federated averaging of features, trained under heads that are trained before them."""

    head_epochs: Count = 1  # passes over the training part in which the head alone is trained
    buffers: Buffers = "averaged"  # batch norm statistics

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head has no parameters."""
        check_head(model, self)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the own head on the received features with cross-entropy, then the features under that head."""
        model = client.load(self.receive(client, state, message))
        first = fit_head(client, model, self.head_epochs)
        with fixed(model.head):
            step = self.trained(client, model, fit_labels(client, model))
        return step._replace(metrics={**step.metrics, "head.loss": first})


def fit_head(client: Client, model: SplitModel, epochs: int) -> float:
    """Train a model's head alone with cross-entropy; return the mean loss."""
    with fixed(model.features):
        return fit_labels(replace(client, epochs=epochs), model)


def check_head(model: SplitModel, method: object) -> None:
    """Raise if a network has no parameters in its head, or none in its features."""
    for name, part in (("head", model.head), ("features", model.features)):
        if not any(weight.requires_grad for weight in part.parameters()):
            raise ValueError(f"{type(method).__name__} trains features and head in turn; the {name} has no weights.")


@dataclass(frozen=True, config=STRICT)
class FedPAC(AveragedFeatures):
    """FedRep with features drawn to all clients' class means, and with heads mixed of those of similar clients."""

    lam: NonNegative = 1.0  # λ, weight of the distance to the class means
    head_epochs: Count = 1  # passes over the training part in which the head alone is trained
    buffers: Buffers = "averaged"  # batch norm statistics

    def schema(self, task: Task) -> Schema:
        """Return the schema: features; clients add head and statistics, the server those of all, and class means."""
        plain, head = super().schema(task), head_slots(task)
        own = {name: field for slot in head for name, field in slot[0].items()}
        own |= {"variance": Field(()), "moments": Field(("K", "d"))}
        every = {f"all.{name}": Field(("N", *field.shape)) for name, field in own.items()}
        up, down = own | class_vectors("K_i"), every | class_vectors("K'")
        return make_schema(task, up=(*plain.up, (up,)), down=(*plain.down, optional(down)))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head is more than a single linear layer, or the features have no parameters."""
        check_head(model, self)
        check_one_layer(model, task)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Replace the features by the received ones, and the head by the best mixture of all heads."""
        received = state | prefixed("model", strip_prefix(message, "model"))
        every = strip_prefix(message, "all")
        if not every or "moments" not in state:  # before the first aggregate, or before its own first round
            return received
        shares = mixture(every["variance"], every["moments"], state["moments"])  # (N,)
        heads = {name: value for name, value in every.items() if name.startswith("head.")}
        mixed = {name: torch.tensordot(shares, value.double(), 1).to(value) for name, value in heads.items()}
        return replace_head(received, mixed)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Measure V and h with the received features, train the head, then the features with CE + λ·mean (z − c_y)²."""
        model = client.load(self.receive(client, state, message))
        own = feature_statistics(client, model)
        means, known = received_prototypes(message, client)  # c (K, d), (K,)
        first = fit_head(client, model, self.head_epochs)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            return client.cross_entropy(model.head(z), y) + self.lam * prototype_loss(z, y, means, known)

        with fixed(model.head):
            step = self.trained(client, model, client.fit(loss, model))
        reply = step.message | head_of(step.state) | own | class_means(client, model)
        return Step(step.state | own, reply, {**step.metrics, "head.loss": first})

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Average features by samples and class means alike, and pass on all heads with their statistics."""
        features, means, others = server.combine(), server.combine(), list[Tensors]()
        for reply in replies:
            model = prefixed("model", strip_prefix(reply, "model"))
            features.add(Contribution(model, reply["num_examples"]))
            means.add(by_class(reply, server))
            others.append({name: reply[name] for name in reply if name.startswith("head.") or name in OWN})
        every = {f"all.{name}": torch.stack([other[name] for other in others]) for name in others[0]}
        classes = keep_missing(state, means_by_class(means.sums(), server.feature_dim), server)
        return Step(classes, features.sums().means | every | classes)


@torch.no_grad()
def feature_statistics(client: Client, model: SplitModel) -> Tensors:
    """Compute h (K, d), h_k = π_k μ_k, and V () = (E‖z‖² − Σ_k ‖h_k‖²)/n of the training part, in evaluation mode."""
    model.eval()
    sums = torch.zeros(client.num_classes, client.feature_dim, dtype=torch.float64, device=client.device)
    squares = sums.new_zeros(())
    for x, y in client.train.sweep(device=client.device):
        with client.autocast():
            z = model.features(x)
        sums += class_sums(z, y, client.num_classes)[0]
        squares += z.double().square().sum()
    size = len(client.train)
    h = sums / size
    variance = (squares / size - h.square().sum()).clamp(min=0) / size
    return {"variance": variance.float().cpu(), "moments": h.float().cpu()}


def mixture(variances: Tensor, moments: Tensor, own: Tensor) -> Tensor:
    """Find the shares α (N,), α ≥ 0 and Σα = 1, of heads that minimise αᵀ(diag V + D)α, in float64.

    D_jl = Σ_k (h_k − h_jk)·(h_k − h_lk) of a client's own h (K, d) and all clients' (N, K, d), V (N,). Up to their sum
    these are the α ≥ 0 that minimise αᵀPα/2 − Σα, by least squares: ‖Rα − R⁻ᵀ1‖² with P = RᵀR.
    """
    gaps = (own - moments).flatten(1).double()  # (N, K·d)
    matrix = gaps @ gaps.T
    diagonal = matrix.diagonal() + variances.double()
    diagonal = diagonal + RIDGE * diagonal.mean().clamp(min=torch.finfo(torch.float64).tiny)
    matrix.diagonal().copy_(diagonal)
    factor = torch.linalg.cholesky(matrix / diagonal.mean())  # (N, N), lower
    right = torch.linalg.solve_triangular(factor, torch.ones(len(matrix), 1, dtype=torch.float64), upper=False)
    shares = torch.from_numpy(nnls(factor.T.numpy(), right.flatten().numpy())[0])
    return shares / shares.sum()
