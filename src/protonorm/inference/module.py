"""A trained client as one network of plain torch layers: what other programs load, and what ONNX is written from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protonorm.core.model import SplitModel
from protonorm.core.node import Client
from protonorm.core.samples import as_input
from protonorm.federation.experts import JOINT, joint_scores
from protonorm.geometry.prototypes import vectors_by_class
from protonorm.inference.info import ClientInfo
from protonorm.models.lowering.convolutions import DenseConv2d, DepthwiseConv2d, PointwiseConv2d
from protonorm.tensors import Tensors

if TYPE_CHECKING:
    from protonorm.inference.trained import TrainedClient

CLOSE = 1e-4  # of the largest score: how far scores may be from those of the method itself
PROBES = 3  # inputs that this is tried with
LOWERED = (DenseConv2d, DepthwiseConv2d, PointwiseConv2d)  # CPU forms of a convolution


class Nearest(nn.Module):
    """Score classes by how near their prototypes are: ‖z‖² − ‖z − c‖² = 2 z·c − ‖c‖², a linear layer in float64."""

    weight: Tensor  # (K, d): 2 c
    bias: Tensor  # (K,): −‖c‖², and −∞ for a class without a prototype

    def __init__(self, classes: Tensor, prototypes: Tensor, num_classes: int) -> None:
        super().__init__()
        vectors = prototypes.double()
        weight = vectors.new_zeros(num_classes, vectors.shape[1])
        weight[classes] = 2 * vectors
        bias = vectors.new_full((num_classes,), -torch.inf)
        bias[classes] = -vectors.square().sum(1)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, z: Tensor) -> Tensor:
        """Map features (n, d) to scores (n, K)."""
        return linear(z.double(), self.weight, self.bias)


class Joint(nn.Module):
    """Add up the log-probabilities of rules, each at its temperature."""

    def __init__(self, rules: Iterable[str], sharpness: Mapping[str, float]) -> None:
        super().__init__()
        self.rules, self.sharpness = tuple(rules), dict(sharpness)

    def forward(self, scores: dict[str, Tensor]) -> Tensor:
        """Map scores (n, K) by rule to joint scores (n, K)."""
        return joint_scores({rule: scores[rule] for rule in self.rules}, self.sharpness)


class ClientModule(nn.Module):
    """A trained client as a torch module: inputs as they are stored go in, scores (n, K) of each rule come out.

    features    maps inputs that are ready for a network, pictures (n, C, H, W) in −1 … 1, to features (n, d)
    scores      maps features to scores: by_logits is the network's own head, by_global and by_local its prototypes
    received    the network as the server sent it, of methods that share parts of models; None elsewhere
    second      the second network of methods that have one; None elsewhere
    joint       adds up the log-probabilities of all of them; None if it is not known at which temperatures
    """

    def __init__(
        self,
        features: nn.Module,
        scores: Mapping[str, nn.Module],
        received: nn.Module | None,
        second: nn.Module | None = None,
        joint: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.scores = nn.ModuleDict({f"by_{rule}": head for rule, head in scores.items()})
        self.received, self.second, self.joint = received, second, joint
        self.eval()

    @property
    def rules(self) -> tuple[str, ...]:
        """Name the rules, in the order of what comes out."""
        own = tuple(name.removeprefix("by_") for name in self.scores)
        beside = {"shared": self.second, "received": self.received, JOINT: self.joint}
        return (*own, *(rule for rule, module in beside.items() if module is not None))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Score pictures (n, H, W, C) as uint8, vectors (n, D) as float32 or tokens (n, L) as int64, by rule."""
        inputs = as_input(x)
        z = self.features(inputs)
        found: dict[str, Tensor] = {name.removeprefix("by_"): head(z) for name, head in self.scores.items()}
        for rule, network in (("shared", self.second), ("received", self.received)):
            found |= {} if network is None else {rule: network(inputs)}
        return found if self.joint is None else found | {JOINT: self.joint(found)}


def make_module(trained: TrainedClient) -> ClientModule:
    """Make the module of a trained client, and try whether it scores as the client does."""
    method = trained.algorithm
    client = trained.client
    auxiliary = None if client.auxiliary is None else raised(client.auxiliary)
    plain = replace(client, model=raised(client.model), auxiliary=auxiliary, device="cpu", precision="float32")
    received = method.receive(plain, trained.state, trained.message)
    other = None if received is None else _network(trained, plain, received)[0]
    network, heads = _network(trained, plain, trained.state)
    scores: dict[str, nn.Module] = {}
    for rule, held in (("global", trained.message), ("local", trained.state)):
        if rule in method.rules and "prototypes" in held:
            classes, vectors = vectors_by_class(held, "prototypes", plain.num_classes, plain.feature_dim)
            scores[rule] = Nearest(classes, vectors, plain.num_classes)
    module = ClientModule(network.features, scores | {"logits": network.head} | heads, other, _second(trained, plain))
    if (sharpness := trained.known_sharpness(module.rules)) is not None:
        module.joint = Joint(trained.experts(module.rules), sharpness)
    _check(module, replace(trained, client=plain))
    return module


def raised(network: SplitModel) -> SplitModel:
    """Copy a network to the CPU, its layers in torch's own forms."""
    plain = deepcopy(network).cpu()
    for layer in plain.modules():
        if type(layer) in LOWERED:
            layer.__class__ = nn.Conv2d
    return plain


def probe(info: ClientInfo, count: int) -> Tensor:
    """Draw inputs of the kind that a client takes, always the same ones."""
    random, shape = np.random.default_rng(0), (count, *info.input.shape)
    if info.input.type == "uint8":
        return torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8))
    if info.input.vocabulary is not None:
        return torch.from_numpy(random.integers(0, info.input.vocabulary, shape))
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32))


def differ(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    """Tell whether scores (n, K) by rule are others, by more than rounding."""
    if found.keys() != wanted.keys():
        return True
    return not all(_close(found[rule].detach().double(), value.double()) for rule, value in wanted.items())


def _close(found: Tensor, wanted: Tensor) -> bool:
    finite = wanted[wanted.isfinite()].abs()
    size = float(finite.max()) if len(finite) else 0.0
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=0.0, atol=CLOSE * max(1.0, size))


def _network(trained: TrainedClient, plain: Client, state: Tensors) -> tuple[SplitModel, dict[str, nn.Module]]:
    """Give a network of its own the weights of a state, and further heads by rule.

    A method may have layers to put behind its features (`network`), and more heads than one (`heads`).
    """
    one = replace(plain, model=deepcopy(plain.model), auxiliary=deepcopy(plain.auxiliary))
    model = one.load(state)
    behind = getattr(trained.algorithm, "network", None)
    made = behind(one, state) if callable(behind) else model
    if not isinstance(made, SplitModel):
        raise ValueError(f"The network of {trained.info.algorithm.name} is not cut into features and head.")
    further = getattr(trained.algorithm, "heads", None)
    return made, dict(further(one, state)) if callable(further) else {}


def _second(trained: TrainedClient, plain: Client) -> nn.Module | None:
    """Give the second network weights of its own, if the method answers by it (`second`) and it is at hand."""
    second = getattr(trained.algorithm, "second", None)
    if not callable(second) or plain.auxiliary is None:
        return None
    found: nn.Module = second(replace(plain, auxiliary=deepcopy(plain.auxiliary)), trained.state, trained.message)
    return found


@torch.no_grad()
def _check(module: ClientModule, trained: TrainedClient) -> None:
    """Refuse a method that scores in a way of its own."""
    x = probe(trained.info, PROBES)
    wanted = {rule: torch.from_numpy(value) for rule, value in trained.scores(x.numpy()).items()}
    if differ(module(x), wanted):
        raise ValueError(
            f"{trained.info.algorithm.name} has prediction rules of its own, which cannot be made one torch module; "
            "`predict` and `scores` of the client do what it says."
        )
