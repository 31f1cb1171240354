"""Methods whose server averages the clients' whole models.

FedAvg: the server averages the clients' models.
McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
FedUV: regularises the classifier's variance and the features' uniformity towards those of IID data.
Son et al., "FedUV: Uniformity and Variance for Heterogeneous Federated Learning", CVPR 2024.
FedProx: clients stay near the model that they received.
Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
Ditto: each client has a personal model beside the shared one, near which it stays.
Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.
MOON: features follow those of the received model rather than those of the client's last one.
Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021.

server state:    model.* (floating tensors; without buffers if those are local)
server message:  the same
client state:    model.*; Ditto (of the personal model) and MOON also trained (), whether it has been
client message:  model.* as the server, num_examples ()
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, softplus

from protonorm.algorithms.parts.messages import AveragedModel, Buffers
from protonorm.algorithms.parts.training import fit_labels, squared_distance
from protonorm.core import Client, SplitModel, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Positive
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedAvg(AveragedModel):
    """Federated averaging of whole models."""

    buffers: Buffers = "averaged"  # batch norm statistics; "local" as in PFLlib

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model with cross-entropy."""
        model = client.load(self.receive(client, state, message))
        return self.trained(client, model, fit_labels(client, model))


SMALLEST = 1e-12  # lower bound of σ: features this close count as equal


@dataclass(frozen=True, config=STRICT)
class FedUV(AveragedModel):
    """Federated averaging with variance and uniformity regularisation."""

    mu: NonNegative = 2.5  # μ, weight of the classifier's variance L_V
    lam: NonNegative = 0.5  # λ, weight of the features' uniformity L_U
    bandwidth: Literal["differentiated", "detached"] = "differentiated"  # whether gradients flow through σ of L_U
    features: Literal["raw", "unit"] = "raw"  # z of L_U: as in the code, or on the sphere as in the paper's text
    buffers: Buffers = "averaged"  # batch norm statistics

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model with CE + μ·L_V + λ·L_U."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            logits = model.head(z)
            points = z if self.features == "raw" else normalize(z.float())
            l_v, l_u = variance_loss(logits.float().softmax(1)), uniformity_loss(points, self.bandwidth == "detached")
            return client.cross_entropy(logits, y) + self.mu * l_v + self.lam * l_u

        return self.trained(client, model, client.fit(loss, model))


def variance_loss(p: Tensor) -> Tensor:
    """Average max(0, v − std_k) over the columns k of probabilities p (B, K): L_V; zero for a single row.

    v = 1/√K is the standard deviation of each column of the K×K identity: one certain prediction per class.
    """
    if len(p) < 2:
        return p.new_zeros(())
    v = 1 / math.sqrt(p.shape[1])
    return (v - p.std(dim=0)).relu().mean()


def uniformity_loss(z: Tensor, detached: bool = False) -> Tensor:
    """Average exp(−‖z_a − z_b‖²/σ) over the pairs of features z (B, d): L_U; zero for a single row.

    σ is the lower median of the non-zero squared distances. Equal features yield 1. Features of lower precision are
    compared in float32.
    """
    if len(z) < 2:
        return z.new_zeros(())
    squares = torch.pdist(z.float()).square()  # (B(B − 1)/2,)
    positive = squares.masked_fill(squares <= 0, math.nan)
    sigma = positive.nanmedian().nan_to_num(nan=1.0).clamp(min=SMALLEST)
    return (-squares / (sigma.detach() if detached else sigma)).exp().mean()


@dataclass(frozen=True, config=STRICT)
class FedProx(AveragedModel):
    """Federated averaging with a pull towards the received model."""

    mu: NonNegative = 0.01  # μ, weight of the pull
    buffers: Buffers = "averaged"  # batch norm statistics

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model with CE + μ/2·‖w − w_r‖²."""
        model = client.load(self.receive(client, state, message))
        return self.trained(client, model, fit_near(client, model, self.mu))


class Remembering(AveragedModel):
    """Method whose clients keep a model of their own, which begins as the first one that they receive."""

    def init_client(self, client: Client) -> Tensors:
        """Create the client's model, which has not been trained."""
        return super().init_client(client) | {"trained": torch.tensor(False)}

    def own(self, state: Tensors, received: Tensors) -> Tensors:
        """Return the model that the client kept; before its first round, the received one."""
        return state if bool(state["trained"]) else received


@dataclass(frozen=True, config=STRICT)
class Ditto(Remembering):
    """Federated averaging, and beside it a personal model that is pulled towards the average."""

    lam: NonNegative = 1.0  # λ, weight of the pull
    personal_epochs: Count | None = None  # epochs of the personal model; None is as many as those of the shared one

    buffers: ClassVar[Buffers] = "averaged"  # type: ignore[misc]  # batch norm statistics: the personal model has its own
    headline: ClassVar[str] = "logits"  # the personal model

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model w_r with CE, as FedAvg, and the personal one with CE + λ/2·‖v − w_r‖²."""
        received = self.receive(client, state, message)
        model = client.load(received)
        target = [weight.detach().clone() for weight in model.parameters()]
        with torch.random.fork_rng(devices=[]):  # the personal model gets the same batches
            shared = self.trained(client, model, fit_labels(client, model))
        personal = client.load(self.own(state, received))
        client = replace(client, epochs=self.personal_epochs or client.epochs)
        loss = fit_near(client, personal, self.lam, target)
        kept = snapshot("model", personal) | {"trained": torch.tensor(True)}
        return Step(kept, shared.message, {**shared.metrics, "personal.loss": loss})


def fit_near(client: Client, model: SplitModel, weight: float, start: Sequence[Tensor] | None = None) -> float:
    """Train a model with CE + weight/2·‖w − w_0‖², w_0 its first parameters or others; return the mean loss."""
    start = start or [first.detach().clone() for first in model.parameters()]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return client.cross_entropy(model(x), y) + weight / 2 * squared_distance(model, start)

    return client.fit(loss, model)


@dataclass(frozen=True, config=STRICT)
class MOON(Remembering):
    """Federated averaging with features drawn to those of the received model, away from the client's last one's."""

    mu: NonNegative = 1.0  # μ, weight of the contrast
    tau: Positive = 0.5  # τ, temperature of the cosines
    buffers: Buffers = "averaged"  # batch norm statistics

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model with CE + μ·ℓ of features z, z_g of the model as received, z_p of the last one."""
        received = self.receive(client, state, message)
        previous = deepcopy(client.load(self.own(state, received))).eval().requires_grad_(False)
        teacher = deepcopy(client.load(received)).eval().requires_grad_(False)
        model = client.load(received)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            contrast = model_contrast(z, teacher.features(x), previous.features(x), self.tau)
            return client.cross_entropy(model.head(z), y) + self.mu * contrast

        step = self.trained(client, model, client.fit(loss, model))
        return step._replace(state=step.state | {"trained": torch.tensor(True)})


def model_contrast(z: Tensor, z_g: Tensor, z_p: Tensor, tau: float) -> Tensor:
    """Average −log of e^{c_g/τ}/(e^{c_g/τ} + e^{c_p/τ}), c_g = cos(z, z_g), c_p = cos(z, z_p), features (B, d)."""
    z, z_g, z_p = z.float(), z_g.float(), z_p.float()
    return softplus((cosine_similarity(z, z_p) - cosine_similarity(z, z_g)) / tau).mean()
