"""Trained clients as torch modules of plain layers, and as ONNX graphs, which need protonorm[onnx]."""

import json
import logging
import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protonorm.core import Client, SplitModel
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

    def __init__(self, rules: Iterable[str], temperatures: Mapping[str, float]) -> None:
        super().__init__()
        self.rules, self.sharpness = tuple(rules), dict(temperatures)

    def forward(self, scores: dict[str, Tensor]) -> Tensor:
        """Map scores (n, K) by rule to joint scores (n, K)."""
        return joint_scores({rule: scores[rule] for rule in self.rules}, self.sharpness)


class ClientModule(nn.Module):
    """Trained client as a torch module that maps stored inputs to scores (n, K) of each rule."""

    def __init__(
        self,
        features: nn.Module,  # maps inputs ready for a network, images (n, C, H, W) in −1 … 1, to features (n, d)
        scores: Mapping[str, nn.Module],  # map features to scores by rule: logits the network's head, or prototypes
        received: nn.Module | None,  # network as the server sent it, for methods that share parts of models
        second: nn.Module | None = None,  # second network, for methods that have one
        trunks: nn.Module | None = None,  # frozen trunks, which map inputs to what all these networks read
    ) -> None:
        super().__init__()
        self.features = features
        self.scores = nn.ModuleDict({f"by_{rule}": head for rule, head in scores.items()})
        self.received, self.second, self.trunks = received, second, trunks
        self.joint: nn.Module | None = None  # sums the log-probabilities of all rules, if temperatures are known
        self.eval()

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules, in the order of the outputs."""
        heads = tuple(name.removeprefix("by_") for name in self.scores)
        optional = {"shared": self.second, "received": self.received, JOINT: self.joint}
        return (*heads, *(rule for rule, module in optional.items() if module is not None))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Score images (n, H, W, C) as uint8, vectors (n, D) as float32 or tokens (n, L) as int64, by rule."""
        inputs = as_input(x) if self.trunks is None else self.trunks(as_input(x))
        z = self.features(inputs)
        scores: dict[str, Tensor] = {name.removeprefix("by_"): head(z) for name, head in self.scores.items()}
        for rule, network in (("shared", self.second), ("received", self.received)):
            scores |= {} if network is None else {rule: network(inputs)}
        return scores if self.joint is None else scores | {JOINT: self.joint(scores)}


def make_module(trained: "TrainedClient") -> ClientModule:
    """Build the module of a trained client, and check that it scores as the client does."""
    method, client = trained.algorithm, trained.client
    auxiliary = None if client.auxiliary is None else raised(client.auxiliary)
    plain = replace(client, model=raised(client.model), auxiliary=auxiliary, training=Training())
    received = method.receive(plain, trained.state, trained.message)
    other = None if received is None else _network(trained, plain, received)[0]
    network, heads = _network(trained, plain, trained.state)
    scores: dict[str, nn.Module] = {}
    for rule, tensors in (
        ("nearest-global", method.prototypes_of(plain, trained.message)),
        ("nearest-local", trained.state),
    ):
        if rule in method.rules and "prototypes" in tensors:
            classes, vectors = vectors_by_class(tensors, "prototypes", plain.num_classes, plain.feature_dim)
            scores[rule] = Nearest(classes, vectors, plain.num_classes)
    second = getattr(method, "second", None)  # builds the second network, for methods that have one
    shared = None
    if callable(second) and plain.auxiliary is not None:
        shared = second(replace(plain, auxiliary=deepcopy(plain.auxiliary)), trained.state, trained.message)
    scores |= {"logits": network.head} if "logits" in method.rules else {}
    module = ClientModule(network.features, scores | heads, other, shared, trained.trunks)
    if (temperatures := trained.known_sharpness(module.rules)) is not None:
        module.joint = Joint(trained.experts(module.rules), temperatures)
    x = probe(trained.info, PROBES)
    scored = replace(trained, client=plain).scores(x.numpy())
    expected = {rule: torch.from_numpy(value) for rule, value in scored.items()}
    with torch.no_grad():
        if differ(module(x), expected):
            raise ValueError(
                f"{trained.info.algorithm.name} has prediction rules of its own, which cannot be made one torch "
                "module; `predict` and `scores` of the client do what it says."
            )
    return module


def raised(network: SplitModel) -> SplitModel:
    """Copy a network to the CPU, with its layers in torch's own forms."""
    copy = deepcopy(network).cpu()
    for layer in copy.modules():
        if type(layer) in LOWERED:
            layer.__class__ = nn.Conv2d
    return copy


def probe(info: ClientInfo, count: int) -> Tensor:
    """Generate inputs of the kind that a client accepts, the same in every call."""
    random, shape = np.random.default_rng(0), (count, *info.input.shape)
    if info.input.type == "uint8":
        return torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8))
    if info.input.vocabulary is not None:
        return torch.from_numpy(random.integers(0, info.input.vocabulary, shape))
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32))


def differ(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Return whether scores (n, K) by rule differ by more than rounding."""

    def is_close(rule: str) -> bool:
        x, y = actual[rule].detach().double(), expected[rule].double()
        size = max([1.0, *y[y.isfinite()].abs().tolist()])
        return x.shape == y.shape and torch.allclose(x, y, rtol=0.0, atol=CLOSE * size)

    return actual.keys() != expected.keys() or not all(map(is_close, expected))


def _network(trained: "TrainedClient", plain: Client, state: Tensors) -> tuple[SplitModel, dict[str, nn.Module]]:
    """Return a separate network with the weights of a state, and further heads by rule.

    A method may define layers after its features (`network`), and additional heads (`heads`).
    """
    copy = replace(plain, model=deepcopy(plain.model), auxiliary=deepcopy(plain.auxiliary))
    model = copy.load(state)
    network, heads = (getattr(trained.algorithm, name, None) for name in ("network", "heads"))
    complete = network(copy, state) if callable(network) else model
    if not isinstance(complete, SplitModel):
        raise ValueError(f"The network of {trained.info.algorithm.name} is not cut into features and head.")
    return complete, dict(heads(copy, trained.message | state)) if callable(heads) else {}


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
        raise ValueError(f"ONNX needs {', '.join(missing)}, not installed here: pip install '.[onnx]' in a checkout.")
    onnx: Any = import_module("onnx")
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter's messages
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program: Any = torch.onnx.export(
                Outputs(module),
                (probe(info, 2),),
                input_names=[INPUT],
                output_names=list(module.rules),
                dynamic_shapes=({0: torch.export.Dim("n")},),
                dynamo=True,
                verbose=False,
            )
            graph = program.model_proto
    except Exception as error:  # the exporter can raise almost any exception
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"The network {info.network_name} cannot be written as ONNX: {reason}.") from error
    finally:
        logging.disable(disabled)
    properties = {
        "classes": json.dumps(info.classes),
        "rule": info.recommended.rule,
        "probability": info.recommended.probability,
        "preprocessing": json.dumps(info.preprocessing.model_dump(mode="json")),
        "client": info.name,
        "run": info.run,
        "round": str(info.round),
    }
    onnx.helper.set_model_props(graph, properties)
    content: bytes = graph.SerializeToString()
    runtime: Any = import_module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for x in (probe(info, count) for count in TRIED):
        scores = dict(zip(module.rules, map(torch.from_numpy, session.run(None, {INPUT: x.numpy()})), strict=True))
        with torch.no_grad():
            if differ(scores, module(x)):
                name = info.network_name
                raise ValueError(f"The network {name} has other scores as ONNX than here; it was not written.")
    return content
