"""Methods on frozen trunks whose clients send second moments of their features, once.

T is the beginning of a trunk's digest, D the number of its features, and P = D + 1. Nothing is sent of a trunk whose
statistics have not changed, and otherwise the change.

AFL: one ridge head for each trunk, equal to that of all samples in one place, however they are split.
He et al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025.
server state:    gram.T, moments.T as the clients', summed, for each trunk T that was heard of
server message:  head.T (P, K) likewise; nothing before the first round
client state:    model.* (never trained), sent.gram.T, sent.moments.T
client message:  gram.T (P(P + 1)/2,), the upper triangle of G = XᵀX, and moments.T (P, K), R = XᵀY; with a claim of
                 privacy also noise.T (), the variance of the noise of an off-diagonal entry of G, and only once

FedCGS: one head for each trunk, from Gaussian classes with one covariance.
Guan et al., "Capture Global Feature Statistics for One-Shot Federated Learning", AAAI 2025.
server state, server message, client state, client message: as AFL

Choir, a method of this project: each client solves its own ridge regression, drawn towards the solution of all others.
server state:    gram.T, moments.T as of AFL
server message:  the same
client state:    as of AFL, and head.own, head.public (P, K), mix (2,)
client message:  as of AFL, for the client's own trunk and for the public one
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from protonorm.algorithms.parts.messages import second_network
from protonorm.algorithms.parts.statistics import (
    STRENGTHS,
    Covariance,
    Personal,
    denoised,
    gaussian,
    inverse_temperature,
    log_loss,
    personal,
    points,
    ridge,
    share,
    square,
    triangle,
)
from protonorm.core import Additive, Client, Contribution, Schema, Server, SplitModel, Step, Sums, Task, optional
from protonorm.core.model import Trunk
from protonorm.core.schema import Field, Form, Slot
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Positive, Width
from protonorm.tensors import Tensors, prefixed, strip_prefix

KINDS = ("gram", "moments")
HALF = 0.5  # of a sample: a difference of counts below this is rounding


class Analytic(Additive):
    """Method whose clients send second moments of frozen features; later, only what changed in them."""

    @property
    def headline(self) -> str:
        """Prediction rule of the reported headline accuracy."""
        return self.rules[-1]

    def size(self, trunk: Trunk) -> int:
        """Return P, the length of a trunk's points."""
        return trunk.width + 1

    def points(self, model: SplitModel, x: Tensor) -> Tensor:
        """Compute the points (n, P) of inputs."""
        return points(model.trunk_features(x))

    def networks(self, client: Client) -> dict[str, SplitModel]:
        """Return the networks whose trunks a client reads, by the name of their rule."""
        return {self.rules[0]: client.model}

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise a ValueError for a network without a frozen trunk, or with one that the task does not name."""
        name, shared = type(self).__name__, task.template if self.auxiliary else model
        if model.trunk is None or shared.trunk is None:
            raise ValueError(f"{name} needs networks with a frozen trunk, such as models=frozen:efficientnet_lite0.")
        if model.trunk.digest not in {trunk.digest for trunk in task.known_trunks}:
            raise ValueError(f"{name} needs trunks that its task names; {model.trunk.name} is another.")

    def schema(self, task: Task) -> Schema:
        """Return the schema: of each trunk, the statistics of a client up, and what the server publishes down."""
        sizes = {tag(trunk): self.size(trunk) for trunk in task.known_trunks}
        up = tuple(slot for name, size in sizes.items() for slot in (optional(statistics(name, size)), variance(name)))
        down = tuple(slot for name, size in sizes.items() for slot in self.published(name, size))
        return Schema(up, down, exact={"K": task.num_classes})

    @abstractmethod
    def published(self, name: str, size: int) -> tuple[Slot, ...]:
        """Describe what the server publishes for a trunk."""

    def points_of(self, client: Client) -> Tensors:
        """Compute the points (n, P) of the training samples by trunk."""
        x: Tensors = {}
        for model in self.networks(client).values():
            if (name := tag(model.trunk)) not in x:
                x[name] = torch.cat([self.points(model, batch).double() for batch, _ in client.train.sweep()])
        return x

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Send the statistics of the training samples, less what was sent, and solve what is the client's own."""
        y = one_hot(client.train.labels, client.num_classes).double()  # (n, K)
        sent, x = strip_prefix(state, "sent"), self.points_of(client)
        current = {f"gram.{name}": triangle(points.T @ points).float() for name, points in x.items()}
        current |= {f"moments.{name}": (points.T @ y).float() for name, points in x.items()}
        if sent and client.training.protect.private:
            current = sent  # what privacy covers is sent once
        change = {key: value - sent.get(key, torch.zeros(())) for key, value in current.items()}
        remaining = {key: message[key] - sent.get(key, torch.zeros(())) for key in current if key in message}
        remaining |= {key: value for key, value in message.items() if key.startswith("noise.")}
        solved, metrics = self.solve(client, x, y, remaining)
        reply: Tensors = {}
        for name in x:
            new = {f"{kind}.{name}": change[f"{kind}.{name}"] for kind in KINDS}
            reply |= new if any(bool(value.any()) for value in new.values()) else {}
        return Step(state | prefixed("sent", current) | solved, reply, metrics)

    def solve(self, client: Client, x: Tensors, y: Tensor, others: Tensors) -> tuple[Tensors, dict[str, float]]:
        """Compute what a client keeps besides its statistics, and metrics.

        Args:
            client: The client.
            x: Points (n, P) of its training samples by trunk.
            y: Labels (n, K), one-hot.
            others: Statistics of all other clients by trunk, as far as there are any.
        """
        return {}, {}

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Add the statistics of a client, and zeros for the trunks that it does not have."""
        totals: Tensors = {}
        for trunk in server.trunks:
            size, name = self.size(trunk), tag(trunk)
            totals[f"gram.{name}"] = reply.get(f"gram.{name}", torch.zeros(size * (size + 1) // 2))
            totals[f"moments.{name}"] = reply.get(f"moments.{name}", torch.zeros(size, server.num_classes))
            totals[f"noise.{name}"] = reply.get(f"noise.{name}", torch.zeros(()))
        return Contribution({}, torch.tensor(1), totals)

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Add up the statistics of all rounds, trunk by trunk, and publish what follows from them."""
        totals = dict(state)
        for trunk in server.trunks:
            names = [f"{kind}.{tag(trunk)}" for kind in KINDS]
            if any(bool(sums.totals[name].any()) for name in names):
                noise = f"noise.{tag(trunk)}"
                names += [noise] if bool(sums.totals[noise]) else []
                totals |= {name: (sums.totals[name] + state.get(name, torch.zeros(()))).float() for name in names}
        return Step(totals, self.publish(totals))

    @abstractmethod
    def publish(self, totals: Tensors) -> Tensors:
        """Compute the server's message from the summed statistics."""

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by linear heads; classes that no client has samples of are excluded."""
        tensors = message | state
        z = self.network(client, tensors).features(x)
        return {rule: head(z) for rule, head in self.heads(client, tensors).items()}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Return a network whose features are the points of the client's trunks, side by side."""
        return SplitModel(Points(self, list(self.networks(client).values())), nn.Identity())

    @abstractmethod
    def heads(self, client: Client, state: Tensors) -> dict[str, nn.Module]:
        """Return the head of each rule that is known, on the points."""


class OneHead(Analytic):
    """Analytic method whose server publishes one head for each trunk, which all its clients use."""

    def published(self, name: str, size: int) -> tuple[Slot, ...]:
        """Describe what the server publishes for a trunk: a head."""
        return (optional({f"head.{name}": Field((size, "K"))}),)

    def publish(self, totals: Tensors) -> Tensors:
        """Compute the server's message from the summed statistics: a head for each trunk."""
        moments = strip_prefix(totals, "moments")
        grams = {name: square(totals[f"gram.{name}"], len(value)) for name, value in moments.items()}
        noise = {name: float(totals.get(f"noise.{name}", 0.0)) for name in moments}
        return {f"head.{name}": self.head(grams[name], value, noise[name]).float() for name, value in moments.items()}

    @abstractmethod
    def head(self, gram: Tensor, moments: Tensor, noise: float = 0.0) -> Tensor:
        """Solve for the head (P, K) of a trunk, given G (P, P) and R (P, K) of all clients, and the noise of G."""

    def heads(self, client: Client, state: Tensors) -> dict[str, nn.Module]:
        """Return the head on the points, once it is known."""
        weights = state.get(f"head.{tag(client.model.trunk)}")
        return {} if weights is None else {self.rules[0]: Head(weights).to(client.device)}


@dataclass(frozen=True, config=STRICT)
class AFL(OneHead):
    """Ridge regression on the frozen features of all clients, from their summed statistics."""

    lam: Positive = 0.1  # λ of the ridge

    rules: ClassVar[tuple[str, ...]] = ("ridge",)
    last_round: ClassVar[int | None] = 1

    def head(self, gram: Tensor, moments: Tensor, noise: float = 0.0) -> Tensor:
        """Solve W = (Σ G_i + λI)⁻¹ Σ R_i."""
        return ridge(*denoised(gram, moments, self.lam, noise))


@dataclass(frozen=True, config=STRICT)
class FedCGS(OneHead):
    """Gaussian classes with one covariance, fitted to the frozen features of all clients."""

    gamma: Positive = 1e-3  # γ, added to the diagonal of the covariance
    covariance: Covariance = "total"  # as published, or that within classes

    rules: ClassVar[tuple[str, ...]] = ("gaussian",)
    last_round: ClassVar[int | None] = 1

    def head(self, gram: Tensor, moments: Tensor, noise: float = 0.0) -> Tensor:
        """Solve w_j = (S + γI)⁻¹ m_j, with the bias of Gaussian classes."""
        return gaussian(gram, moments, self.gamma, self.covariance, noise)


@dataclass(frozen=True, config=STRICT)
class Choir(Analytic):
    """Personal ridge regression towards the others' solution, on the client's own trunk and on a public one."""

    lam: Positive | Literal["auto"] = 0.03  # λ, of the others' ridge; "auto": each client chooses by leave-one-out
    public: bool = True  # whether clients also read a trunk that all share
    projection: Width | None = None  # D', number of random directions that features are projected to

    last_round: ClassVar[int | None] = 2

    @property
    def auxiliary(self) -> bool:
        """Whether clients share a second network besides their own: the public trunk."""
        return self.public

    @property
    def rules(self) -> tuple[str, ...]:
        """Prediction rules that are reported: those of each trunk, and both together."""
        return ("own", "public", "both") if self.public else ("own",)

    def size(self, trunk: Trunk) -> int:
        """Return P, the length of a trunk's points."""
        return (self.projection or trunk.width) + 1

    def points(self, model: SplitModel, x: Tensor) -> Tensor:
        """Compute the points (n, P) of inputs."""
        return points(model.trunk_features(x), self.projection)

    def networks(self, client: Client) -> dict[str, SplitModel]:
        """Return the networks whose trunks a client reads, by the name of their rule."""
        return {"own": client.model} | ({"public": second_network(client)} if self.public else {})

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise a ValueError also for a projection that does not shorten the features."""
        super().check_network(model, task)
        for trunk in task.known_trunks:
            if self.projection and self.projection >= trunk.width:
                have = f"the {trunk.width} features of {trunk.name}"
                raise ValueError(f"projection must be below {have}, got {self.projection}; leave it out.")

    def published(self, name: str, size: int) -> tuple[Slot, ...]:
        """Describe what the server publishes for a trunk: the sums."""
        return optional(statistics(name, size)), variance(name)

    def publish(self, totals: Tensors) -> Tensors:
        """Publish the sums themselves: each client takes its own part out of them."""
        return totals

    def solve(self, client: Client, x: Tensors, y: Tensor, others: Tensors) -> tuple[Tensors, dict[str, float]]:
        """Solve W_i = argmin ‖XW − Y‖² + μ‖W − W₋ᵢ‖² for each trunk; weigh and calibrate scores by leave-one-out."""
        fits = {name: self.personal(name, points, y, others) for name, points in x.items()}
        own, public = (fits[tag(list(self.networks(client).values())[position].trunk)] for position in (0, -1))
        w = share(own.scores, public.scores, y) if self.public else 1.0
        blend = w * own.scores + (1 - w) * public.scores  # (n, K), leave-one-out
        s, s_own, s_public = (inverse_temperature(scores, y.argmax(1)) for scores in (blend, own.scores, public.scores))
        solved = {"head.own": (s_own * own.weights).float()}
        if self.public:
            solved["head.public"] = (s_public * public.weights).float()
            solved["mix"] = torch.tensor([s * w / s_own, s * (1 - w) / s_public])
        return solved, {"loss": float((y - blend).square().sum()) / len(y), "share": w}

    def personal(self, name: str, x: Tensor, y: Tensor, others: Tensors) -> Personal:
        """Fit a trunk: W₋ᵢ = (G − G_i + λI)⁻¹ (R − R_i), zero where the others have no samples, and W_i from it."""
        prior, moments = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64), others.get(f"moments.{name}")
        noise = float(others.get(f"noise.{name}", 0.0))
        known = torch.zeros(y.shape[1], dtype=torch.bool) if moments is None else (moments[-1] > HALF) | (noise > 0)
        if moments is None or not bool(known.any()):
            return personal(x, y, prior, known)
        gram = square(others[f"gram.{name}"], len(prior))
        strengths = STRENGTHS if self.lam == "auto" else (self.lam,)
        priors = (ridge(*denoised(gram, moments * known, lam, noise)) for lam in strengths)
        fits = [personal(x, y, prior, known) for prior in priors]
        return min(fits, key=lambda fit: log_loss(fit.scores, y.argmax(1))) if len(fits) > 1 else fits[0]

    def heads(self, client: Client, state: Tensors) -> dict[str, nn.Module]:
        """Return the head of each rule, on the points of both trunks."""
        own = state.get("head.own")
        if own is None:
            return {}
        if not self.public:
            return {"own": Head(own).to(client.device)}
        public, (first, second) = state["head.public"], state["mix"]
        heads = {
            "own": Head(torch.cat([own, torch.zeros_like(public)])),
            "public": Head(torch.cat([torch.zeros_like(own), public])),
            "both": Head(torch.cat([first * own, second * public])),
        }
        return {rule: head.to(client.device) for rule, head in heads.items()}


class Points(nn.Module):
    """Points of several trunks, side by side."""

    def __init__(self, method: Analytic, networks: list[SplitModel]) -> None:
        super().__init__()
        self.method, self.networks = method, networks  # a list: a trunk's columns are read, its layers are not

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to points (B, P), or (B, P + P') of two trunks."""
        return torch.cat([self.method.points(network, x) for network in self.networks], 1)


class Head(nn.Module):
    """Linear scores of points; a class without weights is excluded."""

    weight: Tensor  # (P, K)
    excluded: Tensor  # (K,): 0, or −inf

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        known = weight.any(0)
        self.register_buffer("weight", weight)
        self.register_buffer("excluded", torch.where(known | ~known.any(), 0.0, -torch.inf))

    def forward(self, z: Tensor) -> Tensor:
        """Map points (B, P) to scores (B, K)."""
        return z @ self.weight + self.excluded


def statistics(name: str, size: int) -> Form:
    """Describe a trunk's statistics: the upper triangle of G, and R."""
    return {f"gram.{name}": Field((size * (size + 1) // 2,)), f"moments.{name}": Field((size, "K"))}


def variance(name: str) -> Slot:
    """Describe the variance of the noise of a trunk's statistics, which come without noise unless it is sent."""
    return ({}, {f"noise.{name}": Field(())})


def tag(trunk: Trunk | None) -> str:
    """Return the name of a trunk in messages: the beginning of its digest."""
    if trunk is None:
        raise ValueError("The method needs networks with a frozen trunk, such as models=frozen:efficientnet_lite0.")
    return trunk.digest[:12]
