"""Splitting of networks at the decision layer, the linear layer from features to logits, and their measurement.

Any number of features at the split is mapped to d without learned parameters.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from protonorm.core import SplitModel, one_thread, seeded
from protonorm.core.own_failures import ended
from protonorm.core.registry import nearest
from protonorm.errors import lacks_memory
from protonorm.models.choose import Layer, Network, Shape, explained, named, network
from protonorm.models.inputs import random_batch

SAMPLES = 2  # of a dry run
SHOWN = 4  # largest number of layers that a message suggests

Linear = nn.Linear | nn.Conv2d  # a 1×1 convolution is linear at every point of a map
EXAMINED = 16  # number of random inputs that are checked for negative features


class LayerRun(NamedTuple):
    """Linear layer and its output in a dry run."""

    name: str
    layer: Linear
    output: Tensor

    def __str__(self) -> str:
        return f"{self.name!r} ({inputs_of(self.layer)} → {outputs_of(self.layer)})"


def find_decision(network: nn.Module, sample: tuple[int, ...], name: str | None = None) -> LayerRun:
    """Find a network's decision layer in a dry run; raise ValueError if there is none. The network is unchanged."""
    runs, output = dry_run(network, sample)
    run = _find_named(network, runs, name) if name is not None else _find_deciding(network, runs, output)
    where, times = f"The layer {run} of {name_of(network)}", sum(other.layer is run.layer for other in runs)
    if times > 1:
        raise ValueError(f"{where} runs {times} times; a decision layer runs once.")
    if len(run.output) != SAMPLES or run.output.ndim < 2:
        shape = tuple(run.output.shape)
        raise ValueError(f"{where} gives {shape} for {SAMPLES} samples; expected a tensor whose first axis is theirs.")
    return run


def dry_run(network: nn.Module, shape: tuple[int, ...]) -> tuple[list[LayerRun], Any]:
    """Run a network on two samples; return its linear layers in execution order, and its output."""
    runs: list[LayerRun] = []
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    batch = random_batch(SAMPLES, shape, torch.Generator().manual_seed(0)).to(device)

    def watch(name: str, layer: Linear) -> Any:
        return layer.register_forward_hook(lambda _, __, output: runs.append(LayerRun(name, layer, output)))

    hooks = [watch(name, layer) for name, layer in network.named_modules() if is_linear(layer)]
    modes = {part: part.training for part in network.modules()}
    try:
        with torch.no_grad():
            return runs, network.eval()(batch)
    except Exception as error:
        problem = first_line(error)
        raise ValueError(f"{name_of(network, 'The')} does not take samples of shape {shape}: {problem}") from error
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training


def _find_named(network: nn.Module, runs: list[LayerRun], name: str) -> LayerRun:
    modules = dict(network.named_modules())
    if name not in modules:
        names = [run.name for run in runs[-SHOWN:]]
        raise ValueError(f"{name_of(network, 'The')} has no layer {name!r}; {nearest(name, names)}")
    if not is_linear(modules[name]):
        raise ValueError(
            f"The layer {name!r} of {name_of(network)} is a {type(modules[name]).__name__}; "
            f"expected a linear layer, such as {_suggest(runs)}."
        )
    if run := next((run for run in runs if run.layer is modules[name]), None):
        return run
    raise ValueError(f"The layer {name!r} of {name_of(network)} does not run in a forward pass; {_suggest(runs)} does.")


def _find_deciding(network: nn.Module, runs: list[LayerRun], output: Any) -> LayerRun:
    """Find the layer whose output the network returns, possibly reshaped, or the only layer with as many outputs."""
    if not runs:
        raise ValueError(
            f"{name_of(network, 'The')} has no linear layer that runs in a forward pass, where it could be cut; "
            "write its base and its head as a pn.SplitModel."
        )
    tensors = _tensors(output)
    addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    widths = {tensor.shape[-1] for tensor in tensors if tensor.ndim}
    returned = [run for run in runs if run.output.untyped_storage().data_ptr() in addresses]
    candidates = returned or [run for run in runs if outputs_of(run.layer) in widths]
    if len({run.name for run in candidates}) != 1:
        outputs = f"{len(tensors)} outputs" if len(tensors) != 1 else "an output"
        problem = "that several linear layers may decide" if candidates else "that no linear layer decides by itself"
        raise ValueError(
            f"{name_of(network, 'The')} gives {outputs} {problem}; name the one to cut at "
            f"(layer=NAME in Python, --layer NAME, or …@NAME in models): {_suggest(candidates or runs)}."
        )
    return candidates[-1]


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _suggest(runs: list[LayerRun]) -> str:
    return " or ".join(dict.fromkeys(str(run) for run in runs[: -SHOWN - 1 : -1]))


def is_linear(layer: nn.Module) -> TypeGuard[Linear]:
    """Return whether a layer is linear and mixes only features, not points."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == layer.stride == (1, 1) and layer.groups == 1 and layer.padding in ((0, 0), "valid")
    return isinstance(layer, nn.Linear)


def inputs_of(layer: Linear) -> int:
    """Return the number of input features of a layer, L."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def outputs_of(layer: Linear) -> int:
    """Return the number of outputs of a layer."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def name_of(network: nn.Module, article: str = "the") -> str:
    """Return the name of a network for messages."""
    return f"{article} network {type(network).__name__}"


def first_line(error: Exception) -> str:
    """Return the first line of an error message; re-raise out-of-memory errors."""
    if lacks_memory(error):
        raise error
    return ended((str(error) or type(error).__name__).splitlines()[0])


def split(
    module: nn.Module,
    feature_dim: int,
    num_classes: int,
    *,
    shape: tuple[int, ...] = (3, 32, 32),
    layer: str | None = None,
) -> SplitModel:
    """Split a network at its decision layer: the inputs of that layer become d features.

    Args:
        module: Network to split; it is modified, not copied, and unchanged if an error is raised.
        feature_dim: Number of features, d.
        num_classes: Number of classes, K; the head is a new linear layer d → K.
        shape: Shape of a sample, (C, H, W) for images.
        layer: Name of the decision layer as in `module.named_modules()`; detected in a dry run by default.

    Returns:
        The network as base and head.

    Raises:
        ValueError: An argument is invalid, or the decision layer cannot be determined.

    ```python
    import protonorm as pn
    from torch import nn

    network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 1000))
    model = pn.split(network, feature_dim=64, num_classes=10, shape=(3, 32, 32))
    ```
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"{module!r} is not a network: expected an nn.Module.")
    arguments: dict[str, Any] = {"feature_dim": feature_dim, "num_classes": num_classes, "shape": shape}
    for name, value in arguments.items():
        sizes = value if name == "shape" else (value,)
        if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ValueError(f"{name} must be of whole numbers from 1, got {value}.")
    run = find_decision(module, tuple(shape), layer)
    tap = Tap(run.layer)
    base = Base(_replace(module, run.layer, tap), tap)
    return cut(base, run.name, inputs_of(run.layer), feature_dim, num_classes).to(run.output.device)


def cut(base: nn.Module, layer: str, width: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Build a split model from a base with L features, a `Cut` layer and a new linear head."""
    return SplitModel(nn.Sequential(base, Cut(layer, width, feature_dim)), nn.Linear(feature_dim, num_classes))


class Cut(nn.AdaptiveAvgPool1d):
    """Layer that maps the L inputs of a decision layer to d features (B, d).

    Feature i is the mean of inputs floor(iL/d) to ceil((i+1)L/d) − 1: means of neighbours where d < L, which overlap
    unless d divides L, and repeated values where d > L.
    """

    def __init__(self, layer: str, width: int, feature_dim: int) -> None:
        super().__init__(feature_dim)
        self.layer = layer  # name of the replaced layer
        self.width = width  # L

    def extra_repr(self) -> str:
        """Return the replaced layer, L and d."""
        return f"{self.layer!r}, {self.width} -> {self.output_size}"


class Tap(nn.Module):
    """Layer in place of a decision layer: stores its input, and returns zeros of the shape of the logits."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.axis = -1 if isinstance(layer, nn.Linear) else 1  # axis of the features
        self.outputs = outputs_of(layer)
        self.kept: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Store (B, …, L) and return zeros (B, …, outputs)."""
        self.kept = input
        shape = list(input.shape)
        shape[self.axis] = self.outputs
        return input.new_zeros(shape)

    def take(self) -> Tensor:
        """Return and clear the stored input (B, L), averaged over points or tokens if there are several."""
        kept, self.kept = self.kept, None
        if kept is None:
            raise RuntimeError("The network's decision layer did not run.")
        return kept.movedim(self.axis, -1).flatten(1, -2).mean(1) if kept.ndim > 2 else kept


class Base(nn.Module):
    """Network that returns the input of its decision layer."""

    def __init__(self, network: nn.Module, tap: Tap) -> None:
        super().__init__()
        self.network, self.tap = network, tap

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features (B, L) of a batch."""
        self.network(x)
        return self.tap.take()


def _replace(network: nn.Module, layer: nn.Module, tap: Tap) -> nn.Module:
    """Replace a layer by the tap, under all its names."""
    for name in [name for name, part in network.named_modules(remove_duplicate=False) if part is layer]:
        if not name:
            return tap  # the network itself is the decision layer
        owner, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(owner), attribute, tap)
    return network


class Facts(NamedTuple):
    """Split, size and cost of a network."""

    network: str
    layer: str | None  # the layer it was split at; None if it was written as base and head
    width: int  # L, number of features at the split
    feature_dim: int  # d
    base: int  # parameters
    head: int  # parameters
    macs: int  # multiply-accumulates of a forward pass of one sample, in convolutions and matrix products
    smallest: float  # smallest feature of random inputs, with random weights and batch statistics
    negative: float  # fraction of those features below zero


def examine(item: str | Network, shape: Shape, feature_dim: int, num_classes: int, layer: Layer = None) -> Facts:
    """Build a network with random weights and measure it."""
    with one_thread(), seeded(0, 0, 0):
        model = network(item, shape, feature_dim, num_classes, layer).train()  # untrained running statistics mislead
        inputs = random_batch(EXAMINED, shape)
        with explained(item, shape), torch.no_grad():
            z = model.features(inputs)  # (16, d)
        if z.shape != (EXAMINED, feature_dim):
            raise ValueError(
                f"The network {named(item)} gives features {tuple(z.shape)} for {EXAMINED} samples; "
                f"expected {(EXAMINED, feature_dim)}."
            )
        cuts = [part for part in model.features.modules() if isinstance(part, Cut)]
        base, head = (sum(weight.numel() for weight in part.parameters()) for part in (model.features, model.head))
        return Facts(
            network=named(item),
            layer=cuts[0].layer if cuts else None,
            width=cuts[0].width if cuts else z.shape[1],
            feature_dim=z.shape[1],
            base=base,
            head=head,
            macs=macs(model.eval(), inputs[:1]),
            smallest=float(z.min()),
            negative=float((z < 0).double().mean()),
        )


def macs(model: SplitModel, sample: torch.Tensor) -> int:
    """Count the multiply-accumulates of a forward pass, in convolutions and matrix products."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    counter = FlopCounterMode(display=False)
    with counter, torch.enable_grad():  # without gradients torch may use fused kernels that are not counted
        model(sample)
    return int(counter.get_total_flops()) // 2
