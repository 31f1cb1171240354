"""Trained clients as torch modules of plain layers, and as ONNX graphs, which need protonorm[onnx]."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protonorm.core.model import SplitModel
from protonorm.core.node import Client
from protonorm.core.samples import as_input
from protonorm.core.training import Training
from protonorm.federation.experts import JOINT, joint_scores
from protonorm.geometry.prototypes import vectors_by_class
from protonorm.inference.info import ClientInfo
from protonorm.models.lowering import DenseConv2d, DepthwiseConv2d, PointwiseConv2d
from protonorm.tensors import Tensors

if TYPE_CHECKING:
    from protonorm.inference.trained import TrainedClient

CLOSE = 1e-4  # maximum difference from the method's own scores, relative to the largest score
PROBES = 3  # number of inputs in this check
LOWERED = (DenseConv2d, DepthwiseConv2d, PointwiseConv2d)  # CPU forms of a convolution
NEEDED = ("onnx", "onnxscript", "onnxruntime")
INPUT = "inputs"
TRIED = (1, 5)  # numbers of inputs that the graph is checked with; it is exported with two


class Nearest(nn.Module):
    """Scores of classes by distance to prototypes: ‖z‖² − ‖z − c‖² = 2 z·c − ‖c‖², a linear layer in float64."""

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
    """Sum of the log-probabilities of rules, each at its temperature."""

    def __init__(self, rules: Iterable[str], sharpness: Mapping[str, float]) -> None:
        super().__init__()
        self.rules, self.sharpness = tuple(rules), dict(sharpness)

    def forward(self, scores: dict[str, Tensor]) -> Tensor:
        """Map scores (n, K) by rule to joint scores (n, K)."""
        return joint_scores({rule: scores[rule] for rule in self.rules}, self.sharpness)


class ClientModule(nn.Module):
    """Trained client as a torch module that maps stored inputs to scores (n, K) of each rule.

    features    maps inputs that are ready for a network, images (n, C, H, W) in −1 … 1, to features (n, d)
    scores      maps features to scores: by_logits is the network's own head, by_global and by_local use prototypes
    received    the network as the server sent it, for methods that share parts of models; otherwise None
    second      the second network, for methods that have one; otherwise None
    joint       sums the log-probabilities of all of them; None if the temperatures are unknown
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
        """Names of the rules, in the order of the outputs."""
        own = tuple(name.removeprefix("by_") for name in self.scores)
        beside = {"shared": self.second, "received": self.received, JOINT: self.joint}
        return (*own, *(rule for rule, module in beside.items() if module is not None))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Score images (n, H, W, C) as uint8, vectors (n, D) as float32 or tokens (n, L) as int64, by rule."""
        inputs = as_input(x)
        z = self.features(inputs)
        found: dict[str, Tensor] = {name.removeprefix("by_"): head(z) for name, head in self.scores.items()}
        for rule, network in (("shared", self.second), ("received", self.received)):
            found |= {} if network is None else {rule: network(inputs)}
        return found if self.joint is None else found | {JOINT: self.joint(found)}


def make_module(trained: TrainedClient) -> ClientModule:
    """Build the module of a trained client, and check that it scores as the client does."""
    method = trained.algorithm
    client = trained.client
    auxiliary = None if client.auxiliary is None else raised(client.auxiliary)
    plain = replace(client, model=raised(client.model), auxiliary=auxiliary, training=Training())
    received = method.receive(plain, trained.state, trained.message)
    other = None if received is None else _network(trained, plain, received)[0]
    network, heads = _network(trained, plain, trained.state)
    scores: dict[str, nn.Module] = {}
    for rule, held in (("global", trained.message), ("local", trained.state)):
        if rule in method.rules and "prototypes" in held:
            classes, vectors = vectors_by_class(held, "prototypes", plain.num_classes, plain.feature_dim)
            scores[rule] = Nearest(classes, vectors, plain.num_classes)
    module = ClientModule(
        network.features, scores | {"logits": network.head} | heads, other, _second_module(trained, plain)
    )
    if (sharpness := trained.known_sharpness(module.rules)) is not None:
        module.joint = Joint(trained.experts(module.rules), sharpness)
    _check_module(module, replace(trained, client=plain))
    return module


def raised(network: SplitModel) -> SplitModel:
    """Copy a network to the CPU, with its layers in torch's own forms."""
    plain = deepcopy(network).cpu()
    for layer in plain.modules():
        if type(layer) in LOWERED:
            layer.__class__ = nn.Conv2d
    return plain


def probe(info: ClientInfo, count: int) -> Tensor:
    """Generate inputs of the kind that a client accepts, the same in every call."""
    random, shape = np.random.default_rng(0), (count, *info.input.shape)
    if info.input.type == "uint8":
        return torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8))
    if info.input.vocabulary is not None:
        return torch.from_numpy(random.integers(0, info.input.vocabulary, shape))
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32))


def differ(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    """Return whether scores (n, K) by rule differ by more than rounding."""
    if found.keys() != wanted.keys():
        return True
    return not all(_close(found[rule].detach().double(), value.double()) for rule, value in wanted.items())


def _close(found: Tensor, wanted: Tensor) -> bool:
    finite = wanted[wanted.isfinite()].abs()
    size = float(finite.max()) if len(finite) else 0.0
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=0.0, atol=CLOSE * max(1.0, size))


def _network(trained: TrainedClient, plain: Client, state: Tensors) -> tuple[SplitModel, dict[str, nn.Module]]:
    """Return a separate network with the weights of a state, and further heads by rule.

    A method may define layers after its features (`network`), and additional heads (`heads`).
    """
    one = replace(plain, model=deepcopy(plain.model), auxiliary=deepcopy(plain.auxiliary))
    model = one.load(state)
    behind = getattr(trained.algorithm, "network", None)
    made = behind(one, state) if callable(behind) else model
    if not isinstance(made, SplitModel):
        raise ValueError(f"The network of {trained.info.algorithm.name} is not cut into features and head.")
    further = getattr(trained.algorithm, "heads", None)
    return made, dict(further(one, state)) if callable(further) else {}


def _second_module(trained: TrainedClient, plain: Client) -> nn.Module | None:
    """Return a copy of the second network, or None if the method has no `second` or the network is missing."""
    second = getattr(trained.algorithm, "second", None)
    if not callable(second) or plain.auxiliary is None:
        return None
    found: nn.Module = second(replace(plain, auxiliary=deepcopy(plain.auxiliary)), trained.state, trained.message)
    return found


@torch.no_grad()
def _check_module(module: ClientModule, trained: TrainedClient) -> None:
    """Raise a ValueError if the module's scores differ from those of the method."""
    x = probe(trained.info, PROBES)
    wanted = {rule: torch.from_numpy(value) for rule, value in trained.scores(x.numpy()).items()}
    if differ(module(x), wanted):
        raise ValueError(
            f"{trained.info.algorithm.name} has prediction rules of its own, which cannot be made one torch module; "
            "`predict` and `scores` of the client do what it says."
        )


class Outputs(nn.Module):
    """Module that returns scores as a tuple in the order of the rules, because a graph's outputs are ordered."""

    def __init__(self, module: ClientModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the scores of inputs."""
        return tuple(self.module(x).values())


def onnx_graph(info: ClientInfo, module: ClientModule) -> bytes:
    """Export the module as ONNX, and check it: `inputs` as stored to scores (n, K), one output per rule."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ValueError(f"ONNX needs {', '.join(missing)}, not installed here: pip install 'protonorm[onnx]'.")
    onnx: Any = import_module("onnx")
    try:
        with _quiet(), torch.no_grad():
            made: Any = torch.onnx.export(
                Outputs(module),
                (probe(info, 2),),
                input_names=[INPUT],
                output_names=list(module.rules),
                dynamic_shapes=({0: torch.export.Dim("n")},),
                dynamo=True,
                verbose=False,
            )
            graph = made.model_proto
    except Exception as error:  # the exporter can raise almost any exception
        said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"The network {info.network_name} cannot be written as ONNX: {said}.") from error
    onnx.helper.set_model_props(graph, _properties(info))
    content: bytes = graph.SerializeToString()
    _try(content, info, module)
    return content


def _properties(info: ClientInfo) -> dict[str, str]:
    """Return metadata: classes, recommended rule, preprocessing and origin."""
    return {
        "classes": json.dumps(info.classes),
        "rule": info.recommended.rule,
        "probability": info.recommended.probability,
        "preprocessing": json.dumps(info.preprocessing.model_dump(mode="json")),
        "client": info.name,
        "run": info.run,
        "round": str(info.round),
    }


@torch.no_grad()
def _try(content: bytes, info: ClientInfo, module: ClientModule) -> None:
    """Raise a ValueError if the graph's scores differ from those of the module."""
    runtime: Any = import_module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for count in TRIED:
        x = probe(info, count)
        found = dict(zip(module.rules, map(torch.from_numpy, session.run(None, {INPUT: x.numpy()})), strict=True))
        if differ(found, module(x)):
            raise ValueError(
                f"The network {info.network_name} gives other scores as ONNX than here; it was not written."
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's log messages and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
