"""FedNH: the classifier is one unit vector a class, spread out at first and moved by the server, never by SGD.

Dai et al., "Tackling Data Heterogeneity in Federated Learning with Class Prototypes", AAAI 2023.

server remembers: model.features.* (floating tensors), scale (), classes (K,) all, prototypes (K, d) unit vectors
server says:      the same
client remembers: model.* (its head is not used), and the others as the server
client says:      model.features.*, scale (), classes (K_i,), prototypes (K_i, d) unit vectors, counts (K_i,)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import normalize

from protonorm.algorithms.parts.messages import class_counts, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.algorithms.parts.weights import Buffers, shared
from protonorm.core import Algorithm, Client, Field, Schema, Server, SplitModel, Step, Task, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Fraction, Positive
from protonorm.geometry.directions import on_circle, orthogonal, smoothed, weighted_sums
from protonorm.geometry.points import unit
from protonorm.tensors import Tensors, floats, snapshot, weighted_mean

SCALE = {"cnn4": 1.0}  # s at the start, as the authors' code has it: for their 4-layer CNN …
SCALE_ELSEWHERE = 20.0  # … and for their ResNet-18


@dataclass(frozen=True, config=STRICT)
class FedNH(Algorithm):
    """Train features towards directions that the server holds for all classes."""

    rho: Annotated[float, Ge(0), Le(1)] = 0.9  # ρ, share of W_j that stays; 1 never moves W (FedUH)
    server_lr: Fraction = 1.0  # step from the old model to the mean; above 1 a running variance may become negative
    scale: Positive | None = None  # s at the start; None takes 1 for the network cnn4, 20 for others
    scaling: Literal["trained", "frozen"] = "trained"  # whether SGD moves s
    initial: Literal["orthogonal", "circle"] = "orthogonal"  # W before round 1; "circle" needs d = 2
    clip: Positive = 10.0  # bound of the gradient's norm
    buffers: Buffers = "averaged"  # batch norm's statistics

    heterogeneous: ClassVar[bool] = False
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Take the first scale of the network where none is given."""
        if self.scale is not None:
            return self
        return replace(self, scale=SCALE.get(networks[0], SCALE_ELSEWHERE))  # all clients have the same network

    def schema(self, task: Task) -> Schema:
        """Both sides send features, scale and directions; clients only those of their classes, with counts."""
        features = slots_like(shared("model.features", task.template.features, self.buffers))
        model = (*features, ({"scale": Field(())},))
        own = {**class_vectors("K_i"), **class_counts("K_i", least=1)}
        return make_schema(task, up=(*model, (own,)), down=(*model, (class_vectors("K"),)))

    def init_server(self, server: Server) -> Step:
        """Begin with one model for all, and with directions far apart."""
        assert server.model is not None
        features = shared("model.features", server.model.features, self.buffers)
        said = features | self._head(server.num_classes, server.feature_dim)
        return Step(said, said)

    def init_client(self, client: Client) -> Tensors:
        """Begin with the client's own model and directions, used until the server's arrive."""
        return snapshot("model", client.model) | self._head(client.num_classes, client.feature_dim)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over features, scale and directions."""
        return state | message

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and scale with the cross-entropy of s·ê·Wᵀ, then measure the direction of each class."""
        held = self.receive(client, state, message)
        client.load(held)
        model = self.network(client, held)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model, clip=self.clip)
        scale = {"scale": model.get_parameter("head.scale").detach().cpu()}
        own = class_means(client, model)  # of the unit features, so shorter than one
        own |= {"prototypes": unit(own["prototypes"])}  # u_ij
        own |= {"counts": client.train.class_counts(client.num_classes)[own["classes"]]}  # n_ij
        said = shared("model.features", client.model.features, self.buffers) | scale | own
        return Step(held | snapshot("model", client.model) | scale, said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Step towards the plain mean of features and scale, and move the directions."""
        mean = weighted_mean((1.0, floats(reply) | _weighted(reply, server.num_classes)) for reply in replies)
        sums = mean.pop("prototypes")  # Σ_i n_ij u_ij up to a factor, (K, d)
        said = {name: torch.lerp(state[name], value, self.server_lr) for name, value in mean.items()}
        said |= {"classes": state["classes"], "prototypes": smoothed(state["prototypes"], sums, self.rho)}
        return Step(said, said)

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by s·ê·Wᵀ."""
        return {"logits": self.network(client, state)(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Put normalisation and the remembered head behind the loaded features."""
        head = Directions(state["prototypes"], state["scale"], self.scaling == "trained").to(client.device)
        return SplitModel(nn.Sequential(client.model.features, Unit()), head)

    def _head(self, num_classes: int, feature_dim: int) -> Tensors:
        if self.scale is None:
            raise ValueError(
                "FedNH has no starting scale: give one, or let adapted(dataset, networks) take that of the network."
            )
        place = on_circle if self.initial == "circle" else orthogonal
        directions = place(num_classes, feature_dim)
        return {"scale": torch.tensor(self.scale), "classes": torch.arange(num_classes), "prototypes": directions}


class Unit(nn.Module):
    """Bring features to unit length: ê = e/‖e‖."""

    def forward(self, e: Tensor) -> Tensor:
        """Map features (B, d) to unit vectors (B, d); zero stays zero."""
        return normalize(e)


class Directions(nn.Module):
    """The head s·ê·Wᵀ: the directions W (K, d) are given, the scale s () may be trained."""

    directions: Tensor

    def __init__(self, directions: Tensor, scale: Tensor, trained: bool) -> None:
        super().__init__()
        self.register_buffer("directions", directions)
        self.scale = nn.Parameter(scale.clone(), requires_grad=trained)

    def forward(self, z: Tensor) -> Tensor:
        """Map unit features (B, d) to logits (B, K)."""
        return self.scale * (z @ self.directions.T)


def _weighted(reply: Tensors, num_classes: int) -> Tensors:
    """Lay n_ij u_ij of a client's classes out over all classes, (K, d)."""
    sums = weighted_sums(reply["classes"], reply["prototypes"], reply["counts"], num_classes)
    return {"prototypes": sums}
