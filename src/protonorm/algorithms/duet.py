"""Duet: a client's own network and a shared network learn the same feature space and predict together.

A method of this project. Both networks are trained towards the same fixed directions, one per class; the server
averages the shared networks, and the client's own network also learns from the shared network. Scores exclude the
client's class shares, which differ between clients and are not sent. The weight of the own networks is chosen by the
validation samples of all clients.

server state:    shared.features.* (floating tensors of the second network, without its head), weight ()
server message:  the same
client state:    the same as trained or received, model.*, targets (K, d) unit vectors, prior (K,) log π_i
client message:  shared.features.* as the server, num_examples (), nll (11,), the NLL at each weight
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, log_softmax, normalize

from protonorm.algorithms.parts.messages import EXAMPLES, Received, examples, second_network
from protonorm.core import Additive, Client, Contribution, Server, SplitModel, Step, Sums, Task
from protonorm.core.schema import Field, Schema, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative, Positive, Seed
from protonorm.geometry.alignment import equally_spread
from protonorm.tensors import Tensors, floats, on_device, prefixed, restore, snapshot, strip_prefix

SHARED = "shared.features"
WEIGHTS = torch.linspace(0, 1, 11, dtype=torch.float64)  # candidates for w, the weight of the own network


@dataclass(frozen=True, config=STRICT)
class Duet(Received, Additive):
    """Own and shared networks trained towards the same directions, combined for prediction."""

    lam: NonNegative = 1.0  # λ, weight of the own network's distillation from the shared network
    scale: Positive = 16.0  # s, inverse temperature of the cosine softmax
    balanced: bool = True  # whether log π_i, the class shares, are added to the scores, which then exclude them
    smoothing: Positive = 0.1  # a, pseudo-count of each class in π_i
    seed: Seed = 0  # of the directions

    auxiliary: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "shared", "joint")

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send the shared features; the server adds w, clients the NLL for its choice."""
        shared = slots_like(floats(snapshot(SHARED, task.template.features)))
        nll, weight = {"nll": Field((len(WEIGHTS),))}, {"weight": Field((), share=True)}
        return Schema(up=(*shared, EXAMPLES, (nll,)), down=(*shared, (weight,)))

    def init_server(self, server: Server) -> Step:
        """Create a shared network for all clients, with equal weights of both networks."""
        initial = floats(snapshot(SHARED, second_network(server).features)) | {"weight": torch.tensor(0.5)}
        return Step(initial, initial)

    def init_client(self, client: Client) -> Tensors:
        """Create both networks, the common directions and the client's class shares."""
        targets = equally_spread(client.num_classes, client.feature_dim, self.seed)
        fixed = {"targets": targets, "prior": self.log_shares(client), "weight": torch.tensor(0.5)}
        return snapshot("model", client.model) | snapshot(SHARED, second_network(client).features) | fixed

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Compute the NLL of each w, then train with CE(o + log π_i, y) + CE(o_g + log π_i, y) + λ H(q_g, q)."""
        received = self.receive(client, state, message)
        client.load(received)
        network, prior = self.network(client, received), on_device(received["prior"], client.device)
        own, shared = network.get_submodule("features.own"), network.get_submodule("features.shared")
        nll = weigh(client, network)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            o, o_g = network.head(own(x)), network.head(shared(x))  # (B, K), including log π_i
            alone = client.cross_entropy(o, y) + client.cross_entropy(o_g, y)
            return alone + self.lam * imitation(o - prior, o_g.detach() - prior)

        mean = client.fit(loss, own, shared)
        trained = snapshot(SHARED, shared.get_submodule("features"))
        reply = floats(trained) | examples(client) | {"nll": nll}
        return Step(received | snapshot("model", client.model) | trained, reply, {"loss": mean})

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Weight a client's shared network by its number of samples; sum the NLL of each w."""
        shared = prefixed(SHARED, strip_prefix(reply, SHARED))
        return Contribution(shared, reply["num_examples"], {"nll": reply["nll"]})

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the average shared network, θ = Σ n_i θ_i / Σ n_i, and the w of least total NLL."""
        total = sums.totals.get("nll", torch.zeros_like(WEIGHTS))
        weight = WEIGHTS[total.argmin()].float() if bool(total.any()) else state["weight"]  # no validation samples
        average = sums.means | {"weight": weight}
        return Step(average, average, {"weight": float(weight)})

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score with both networks combined, and with the average shared network."""
        joint = self.network(client, state).eval()(x)
        return {"logits": joint, "shared": self.second(client, state, message)(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Combine the loaded network's features with the shared network's in the state; directions are the head."""
        shared = second_network(client).features
        restore(SHARED, shared, state)
        features = Both(client.model.features, shared, state["weight"])
        return SplitModel(features, self._directions(client, state))

    def second(self, client: Client, state: Tensors, message: Tensors) -> SplitModel:
        """Load the average shared network for prediction, with the directions as its head."""
        shared = second_network(client).features
        restore(SHARED, shared, state | message)
        return SplitModel(Unit(shared), self._directions(client, state)).eval()

    def log_shares(self, client: Client) -> Tensor:
        """Compute log π_i (K,), π_ij = (n_ij + a)/(n_i + K a); zeros unless `balanced`."""
        counts = client.train.class_counts(client.num_classes).double().cpu() + self.smoothing
        return (counts / counts.sum()).log().float() if self.balanced else torch.zeros(client.num_classes)

    def _directions(self, client: Client, state: Tensors) -> "Directions":
        targets, prior = (on_device(state[name], client.device) for name in ("targets", "prior"))
        return Directions(targets, prior, self.scale).to(client.device)


class Unit(nn.Module):
    """Features of a network, normalised to unit length."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to unit vectors (B, d)."""
        return normalize(self.features(x))


class Both(nn.Module):
    """Weighted mean of the unit features of two networks: w for the own network, 1 − w for the shared network."""

    def __init__(self, own: nn.Module, shared: nn.Module, weight: Tensor) -> None:
        super().__init__()
        self.own, self.shared, self.weight = Unit(own), Unit(shared), weight

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to points (B, d) of the unit ball."""
        mixed: Tensor = self.weight * self.own(x) + (1 - self.weight) * self.shared(x)
        return mixed


class Directions(nn.Module):
    """Parameter-free head s·z·t_j + log π_j."""

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
    """Sum −log p of the validation samples' classes for each weight of the own network, (11,)."""
    network.eval()
    own, shared = network.get_submodule("features.own"), network.get_submodule("features.shared")
    total = torch.zeros(len(WEIGHTS), device=client.device)
    weights = WEIGHTS.to(total).view(-1, 1, 1)
    for x, y in client.validation.sweep(device=client.device):
        with client.autocast():
            points = weights * own(x) + (1 - weights) * shared(x)  # (11, B, d)
            logs = log_softmax(network.head(points).float(), dim=2)  # (11, B, K)
        total -= logs[:, torch.arange(len(y), device=y.device), y].sum(1)
    return total.cpu()


def imitation(scores: Tensor, teacher: Tensor) -> Tensor:
    """Compute the cross-entropy H(q_g, q) of the softmax of scores to that of a teacher's scores, both (B, K)."""
    return cross_entropy(scores, teacher.softmax(1))
