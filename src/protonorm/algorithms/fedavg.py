"""FedAvg and FedUV: the server averages the clients' models.

FedAvg: the server averages the clients' models.
McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
FedUV: regularises the classifier's variance and the features' uniformity towards those of IID data.
Son et al., "FedUV: Uniformity and Variance for Heterogeneous Federated Learning", CVPR 2024.

server state:    model.* (floating tensors; without buffers if those are local)
server message:  the same
client state:    model.*
client message:  model.* as the server, num_examples ()
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protonorm.algorithms.parts.messages import AveragedModel, Buffers
from protonorm.algorithms.parts.training import fit_labels
from protonorm.core import Client, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative
from protonorm.tensors import Tensors


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
