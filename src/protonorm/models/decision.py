"""Find the decision layer of a network: the linear layer that turns features into logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from protonorm.core.own_failures import ended
from protonorm.core.registry import nearest
from protonorm.models.inputs import random_batch
from protonorm.models.memory import lacks_memory

SAMPLES = 2  # of a dry run
SHOWN = 4  # layers at most that a sentence offers

Linear = nn.Linear | nn.Conv2d  # a 1×1 convolution is a linear layer, at every point of a map


class LayerRun(NamedTuple):
    """A linear layer and what it gave in a dry run."""

    name: str
    layer: Linear
    output: Tensor

    def __str__(self) -> str:
        return f"{self.name!r} ({inputs_of(self.layer)} → {outputs_of(self.layer)})"


def find_decision(network: nn.Module, shape: tuple[int, ...], name: str | None = None) -> LayerRun:
    """Find a network's decision layer in a dry run, or say why there is none; the network is left as it was."""
    runs, output = dry_run(network, shape)
    found = _find_named(network, runs, name) if name is not None else _find_deciding(network, runs, output)
    times = sum(run.layer is found.layer for run in runs)
    if times > 1:
        raise ValueError(f"The layer {found} of {name_of(network)} runs {times} times; a decision layer runs once.")
    if len(found.output) != SAMPLES or found.output.ndim < 2:
        raise ValueError(
            f"The layer {found} of {name_of(network)} gives {tuple(found.output.shape)} for {SAMPLES} samples; "
            f"expected a tensor whose first axis is theirs."
        )
    return found


def dry_run(network: nn.Module, shape: tuple[int, ...]) -> tuple[list[LayerRun], Any]:
    """Send two samples through a network, and list its linear layers in the order they ran."""
    runs: list[LayerRun] = []
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    batch = random_batch(SAMPLES, shape, torch.Generator().manual_seed(0)).to(device)

    def watch(name: str, layer: Linear) -> Any:
        return layer.register_forward_hook(lambda _, __, output: runs.append(LayerRun(name, layer, output)))

    hooks = [watch(name, layer) for name, layer in network.named_modules() if is_linear(layer)]
    try:
        with eval_mode(network), torch.no_grad():
            return runs, network(batch)
    except Exception as error:
        raise ValueError(
            f"{name_of(network, 'The')} does not take samples of shape {shape}: {first_line(error)}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _find_named(network: nn.Module, runs: list[LayerRun], name: str) -> LayerRun:
    known = dict(network.named_modules())
    if name not in known:
        last = [run.name for run in runs[-SHOWN:]]
        raise ValueError(f"{name_of(network, 'The')} has no layer {name!r}; {nearest(name, last)}")
    if not is_linear(known[name]):
        raise ValueError(
            f"The layer {name!r} of {name_of(network)} is a {type(known[name]).__name__}; "
            f"expected a linear layer, such as {_suggest(runs)}."
        )
    for run in runs:
        if run.layer is known[name]:
            return run
    raise ValueError(f"The layer {name!r} of {name_of(network)} does not run in a forward pass; {_suggest(runs)} does.")


def _find_deciding(network: nn.Module, runs: list[LayerRun], output: Any) -> LayerRun:
    """Take the layer whose output the network gives, be it reshaped, or else the only one with as many outputs."""
    if not runs:
        raise ValueError(
            f"{name_of(network, 'The')} has no linear layer that runs in a forward pass, where it could be cut; "
            "write its base and its head as a pn.SplitModel."
        )
    given = _tensors(output)
    places = {tensor.untyped_storage().data_ptr() for tensor in given}
    widths = {tensor.shape[-1] for tensor in given if tensor.ndim}
    direct = [run for run in runs if run.output.untyped_storage().data_ptr() in places]
    found = direct or [run for run in runs if outputs_of(run.layer) in widths]
    if len({run.name for run in found}) != 1:
        what = f"{len(given)} outputs" if len(given) != 1 else "an output"
        why = "that several linear layers may decide" if found else "that no linear layer decides by itself"
        raise ValueError(
            f"{name_of(network, 'The')} gives {what} {why}; name the one to cut at "
            f"(layer=NAME in Python, --layer NAME, or …@NAME in models): {_suggest(found or runs)}."
        )
    return found[-1]


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _suggest(runs: list[LayerRun]) -> str:
    return " or ".join(dict.fromkeys(str(run) for run in runs[: -SHOWN - 1 : -1]))


def is_linear(layer: nn.Module) -> TypeGuard[Linear]:
    """Tell whether a layer is linear in its features alone."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == layer.stride == (1, 1) and layer.groups == 1 and layer.padding in ((0, 0), "valid")
    return isinstance(layer, nn.Linear)


def inputs_of(layer: Linear) -> int:
    """Count the features a layer reads, L."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def outputs_of(layer: Linear) -> int:
    """Count the logits a layer gives."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def name_of(network: nn.Module, article: str = "the") -> str:
    """Name a network in a sentence."""
    return f"{article} network {type(network).__name__}"


def first_line(error: Exception) -> str:
    """Give the first line of an error message; an error that says that memory is short goes on as it is."""
    if lacks_memory(error):
        raise error
    return ended((str(error) or type(error).__name__).splitlines()[0])


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and each of its parts back into its own."""
    modes = {part: part.training for part in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
