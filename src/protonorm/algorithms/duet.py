"""Duet: a client's own network and one that travels learn one feature space, and both answer together.

A method of this project. Both networks turn towards the same directions, one a class, that everybody knows; the server
averages the travelling ones, and the client's own network also learns from it. Scores are free of the client's class
shares, which differ between clients and stay at home. How much the own networks count is decided by everybody's
validation samples.

server remembers: shared.features.* (floating tensors of the second network, without its head), weight ()
server says:      the same
client remembers: the same as it trained or received them, model.*, targets (K, d) unit vectors, prior (K,) log π_i
client says:      shared.features.* as the server, num_examples (), surprise (11,) at each weight
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, log_softmax, normalize

from protonorm.algorithms.parts.messages import EXAMPLES
from protonorm.core import Algorithm, Client, Field, Schema, Server, SplitModel, Step, Task, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative, Positive, Seed
from protonorm.geometry.directions import equally_spread
from protonorm.tensors import Tensors, floats, prefixed, restore, snapshot, under, weighted_mean

SHARED = "shared.features"
WEIGHTS = torch.linspace(0, 1, 11, dtype=torch.float64)  # from which w, that of the own network, is chosen


@dataclass(frozen=True, config=STRICT)
class Duet(Algorithm):
    """Train a client's own network and a shared one towards the same directions, and let both answer."""

    lam: NonNegative = 1.0  # λ, weight of what the own network learns from the shared one
    scale: Positive = 16.0  # s, one over the temperature of the cosine-softmax
    balanced: bool = True  # whether the class shares π_i are added to scores, which are then free of them
    smoothing: Positive = 0.1  # a, samples of each class that are added to those that π_i counts
    seed: Seed = 0  # of the directions

    auxiliary: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "shared", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Both sides send the shared network's features; the server adds w, clients what w is chosen by."""
        shared = slots_like(floats(snapshot(SHARED, task.template.features)))
        surprise, weight = {"surprise": Field((len(WEIGHTS),))}, {"weight": Field((), share=True)}
        return Schema(up=(*shared, EXAMPLES, (surprise,)), down=(*shared, (weight,)))

    def init_server(self, server: Server) -> Step:
        """Begin with one shared network for all, and with both networks counting alike."""
        assert server.auxiliary is not None
        first = floats(snapshot(SHARED, server.auxiliary.features)) | {"weight": torch.tensor(0.5)}
        return Step(first, first)

    def init_client(self, client: Client) -> Tensors:
        """Begin with two networks, until the server's arrives, with everybody's directions, and with class shares."""
        assert client.auxiliary is not None
        targets = equally_spread(client.num_classes, client.feature_dim, self.seed)
        known = {"targets": targets, "prior": self.log_shares(client), "weight": torch.tensor(0.5)}
        return snapshot("model", client.model) | snapshot(SHARED, client.auxiliary.features) | known

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over the average shared network, and w."""
        return state | message

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Weigh both, then train them with CE(o + log π_i, y) + CE(o_g + log π_i, y) + λ H(q_g, q), o their scores."""
        held = self.receive(client, state, message)
        client.load(held)
        network, prior = self.network(client, held), held["prior"].to(client.device)
        own, shared = network.get_submodule("features.own"), network.get_submodule("features.shared")
        surprise = weigh(client, network)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            o, o_g = network.head(own(x)), network.head(shared(x))  # (B, K), with log π_i
            alone = client.cross_entropy(o, y) + client.cross_entropy(o_g, y)
            return alone + self.lam * imitation(o - prior, o_g.detach() - prior)

        mean = client.fit(loss, own, shared)
        trained = snapshot(SHARED, shared.get_submodule("features"))
        said = floats(trained) | {"num_examples": torch.tensor(len(client.train)), "surprise": surprise}
        return Step(held | snapshot("model", client.model) | trained, said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average the shared networks, θ = Σ n_i θ_i / Σ n_i, and choose the w that surprises all clients least."""
        total = torch.zeros_like(WEIGHTS)

        def networks() -> Iterator[tuple[float, Tensors]]:
            for reply in replies:
                total.add_(reply["surprise"])
                yield float(reply["num_examples"]), prefixed(SHARED, under(reply, SHARED))

        shared = weighted_mean(networks())
        weight = WEIGHTS[total.argmin()].float() if bool(total.any()) else state["weight"]  # nobody validates
        return Step(shared | {"weight": weight}, shared | {"weight": weight}, {"weight": float(weight)})

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by both networks together, and by the average shared one alone."""
        both = self.network(client, state).eval()(x)
        return {"logits": both, "shared": self.second(client, state, message)(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Join the loaded network's features with those of the remembered shared one; directions are their head."""
        if client.auxiliary is None:
            raise ValueError("Duet predicts with two networks, but of the second one no more than its name is known.")
        restore(SHARED, client.auxiliary.features, state)
        both = Both(client.model.features, client.auxiliary.features, float(state["weight"]))
        return SplitModel(both, self._directions(client, state))

    def second(self, client: Client, state: Tensors, message: Tensors) -> SplitModel:
        """Load the average shared network, to predict with; directions are its head."""
        assert client.auxiliary is not None
        restore(SHARED, client.auxiliary.features, state | message)
        return SplitModel(Unit(client.auxiliary.features), self._directions(client, state)).eval()

    def log_shares(self, client: Client) -> Tensor:
        """Give log π_i (K,), π_ij = (n_ij + a)/(n_i + K a); zeros where scores are not to be free of them."""
        counts = client.train.class_counts(client.num_classes).double().cpu() + self.smoothing
        return (counts / counts.sum()).log().float() if self.balanced else torch.zeros(client.num_classes)

    def _directions(self, client: Client, state: Tensors) -> Directions:
        return Directions(state["targets"], state["prior"], self.scale).to(client.device)


class Unit(nn.Module):
    """The directions of a network's features."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to unit vectors (B, d)."""
        return normalize(self.features(x))


class Both(nn.Module):
    """The directions of two networks' features, mixed: w of the own one, 1 − w of the shared one."""

    def __init__(self, own: nn.Module, shared: nn.Module, weight: float) -> None:
        super().__init__()
        self.own, self.shared, self.weight = Unit(own), Unit(shared), weight

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to points (B, d) of the unit ball."""
        mixed: Tensor = self.weight * self.own(x) + (1 - self.weight) * self.shared(x)
        return mixed


class Directions(nn.Module):
    """The head s·z·t_j + log π_j, which has nothing to train."""

    targets: Tensor  # t (K, d)
    prior: Tensor  # log π (K,)

    def __init__(self, targets: Tensor, prior: Tensor, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("targets", targets.clone())
        self.register_buffer("prior", prior.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Map points (B, d) of the unit ball to scores (B, K)."""
        return self.scale * linear(z, self.targets) + self.prior


@torch.no_grad()
def weigh(client: Client, network: SplitModel) -> Tensor:
    """Add up −log p of the validation samples' classes for each weight of the own network, (11,)."""
    network.eval()
    own, shared = network.get_submodule("features.own"), network.get_submodule("features.shared")
    total = torch.zeros(len(WEIGHTS), device=client.device)
    weights = WEIGHTS.to(total).view(-1, 1, 1)
    for x, y in client.validation.sweep(device=client.device):
        with client.autocast():
            points = weights * own(x) + (1 - weights) * shared(x)  # (11, B, d)
            logs = log_softmax(network.head(points).float(), dim=2)  # (11, B, K)
        total -= logs[:, torch.arange(len(y)), y].sum(1)
    return total.cpu()


def imitation(scores: Tensor, teacher: Tensor) -> Tensor:
    """Give the cross-entropy H(q_g, q) of the softmax of scores to that of a teacher's, both (B, K)."""
    return cross_entropy(scores, teacher.softmax(1))
