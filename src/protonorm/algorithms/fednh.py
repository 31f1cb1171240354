"""FedNH: the classifier is a unit vector per class, uniform initially and moved by the server, not by SGD.

Dai et al., "Tackling Data Heterogeneity in Federated Learning with Class Prototypes", AAAI 2023.

server state:    model.features.* (floating tensors), scale (), classes (K,) all, prototypes (K, d) unit vectors
server message:  the same
client state:    model.* (its head is unused), and the server's message
client message:  model.features.*, scale (), classes (K_i,), prototypes (K_i, d) unit vectors, counts (K_i,)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import normalize

from protonorm.algorithms.parts.messages import Buffers, Received, class_counts, class_vectors, make_schema, shared
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.algorithms.parts.training import fit_labels
from protonorm.core import Additive, Client, Contribution, Server, SplitModel, Step, Sums, Task
from protonorm.core.schema import Field, Schema, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Fraction, Positive
from protonorm.geometry.points import unit
from protonorm.geometry.prototypes import on_circle, orthogonal, smoothed, weighted_sums
from protonorm.tensors import Tensors, floats, on_device, snapshot, to_cpu

SCALE = {"cnn4": 1.0}  # initial s of the authors' code: for their 4-layer CNN …
DEFAULT_SCALE = 20.0  # … and for their ResNet-18


@dataclass(frozen=True, config=STRICT)
class FedNH(Received, Additive):
    """Features trained towards class directions that the server maintains."""

    rho: Annotated[float, Ge(0), Le(1)] = 0.9  # ρ, share of W_j that is kept; 1 never moves W (FedUH)
    server_lr: Fraction = 1.0  # step from the old model to the mean; above 1 a running variance may become negative
    scale: Positive | None = None  # initial s; None is 1 for the network cnn4, 20 for others
    scaling: Literal["trained", "frozen"] = "trained"  # whether SGD updates s
    initial: Literal["orthogonal", "circle"] = "orthogonal"  # W before round 1; "circle" needs d = 2
    clip: Positive = 10.0  # bound of the gradient norm
    buffers: Buffers = "averaged"  # batch norm statistics

    heterogeneous: ClassVar[bool] = False

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Fill in the network's initial scale if it is not set."""
        if self.scale is not None:
            return self
        return replace(self, scale=SCALE.get(networks[0], DEFAULT_SCALE))  # all clients have the same network

    def schema(self, task: Task) -> Schema:
        """Return the schema: features, scale and directions; clients send those of their classes, with counts."""
        features = slots_like(shared("model.features", task.template.features, self.buffers))
        model = (*features, ({"scale": Field(())},))
        vectors = {**class_vectors("K_i"), **class_counts("K_i", least=1)}
        return make_schema(task, up=(*model, (vectors,)), down=(*model, (class_vectors("K"),)))

    def init_server(self, server: Server) -> Step:
        """Create the initial model of all clients, and separated directions."""
        assert server.model is not None
        features = shared("model.features", server.model.features, self.buffers)
        model = features | self._head(server.num_classes, server.feature_dim)
        return Step(model, model)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's model and directions, used until the server's arrive."""
        return snapshot("model", client.model) | self._head(client.num_classes, client.feature_dim)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and scale with the cross-entropy of s·ê·Wᵀ, then compute the direction of each class."""
        received = self.receive(client, state, message)
        client.load(received)
        model = self.network(client, received)
        mean = fit_labels(client, model, self.clip)
        scale = {"scale": to_cpu(model.get_parameter("head.scale"))}
        vectors = class_means(client, model)  # means of unit features, so shorter than 1
        vectors |= {"prototypes": unit(vectors["prototypes"])}  # u_ij
        vectors |= {"counts": client.train.class_counts(client.num_classes)[vectors["classes"]]}  # n_ij
        reply = shared("model.features", client.model.features, self.buffers) | scale | vectors
        return Step(received | snapshot("model", client.model) | scale, reply, {"loss": mean})

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Return features and scale with equal weights, and n_ij u_ij of each class."""
        values = {name: value for name, value in floats(reply).items() if name != "prototypes"}
        sums = weighted_sums(reply["classes"], reply["prototypes"], reply["counts"], server.num_classes)  # (K, d)
        return Contribution(values, torch.tensor(1), {"prototypes": sums})

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Step towards the mean of features and scale, and move the directions."""
        model = {name: torch.lerp(state[name], value, self.server_lr) for name, value in sums.means.items()}
        moved = smoothed(state["prototypes"], sums.totals["prototypes"], self.rho)
        model |= {"classes": state["classes"], "prototypes": moved}
        return Step(model, model)

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by s·ê·Wᵀ."""
        return {"logits": self.network(client, state)(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Append normalisation and the head of the state to the loaded features."""
        directions, scale = (on_device(state[name], client.device) for name in ("prototypes", "scale"))
        head = Directions(directions, scale, self.scaling == "trained").to(client.device)
        return SplitModel(nn.Sequential(client.model.features, Unit()), head)

    def _head(self, num_classes: int, feature_dim: int) -> Tensors:
        if self.scale is None:
            raise ValueError("FedNH has no scale: give one, or let adapted(dataset, networks) take the network's.")
        directions = (on_circle if self.initial == "circle" else orthogonal)(num_classes, feature_dim)
        return {"scale": torch.tensor(self.scale), "classes": torch.arange(num_classes), "prototypes": directions}


class Unit(nn.Module):
    """Normalisation of features to unit length: ê = e/‖e‖."""

    def forward(self, e: Tensor) -> Tensor:
        """Map features (B, d) to unit vectors (B, d); zero stays zero."""
        return normalize(e)


class Directions(nn.Module):
    """Head s·ê·Wᵀ with fixed directions W (K, d) and an optionally trainable scale s ()."""

    directions: Tensor

    def __init__(self, directions: Tensor, scale: Tensor, trained: bool) -> None:
        super().__init__()
        self.register_buffer("directions", directions)
        self.scale = nn.Parameter(scale.clone(), requires_grad=trained)

    def forward(self, z: Tensor) -> Tensor:
        """Map unit features (B, d) to logits (B, K)."""
        return self.scale * (z @ self.directions.T)
