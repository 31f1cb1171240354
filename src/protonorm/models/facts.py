"""Facts about a network before it is trained: where it is cut, how large it is, what it costs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from protonorm.core import SplitModel, one_thread, seeded
from protonorm.core.own_failures import call_failure, told
from protonorm.models.choose import Network, named, network
from protonorm.models.inputs import random_batch
from protonorm.models.memory import lacks_memory
from protonorm.models.split import Cut

SAMPLES = 16  # random inputs that are looked at for negative features


class Facts(NamedTuple):
    """A network's cut, size and cost."""

    network: str
    layer: str | None  # the layer it was cut at; None where it was written as base and head
    width: int  # L, the features at the cut
    feature_dim: int  # d
    base: int  # parameters
    head: int  # parameters
    macs: int  # multiplications and additions of one forward pass of one sample, in convolutions and matrix products
    smallest: float  # feature of random inputs, with random weights and the batch's own statistics
    negative: float  # share of those features that are below zero

    def plain(self) -> dict[str, Any]:
        """Give the facts as plain data."""
        return self._asdict()


def examine(
    item: str | Network, shape: tuple[int, ...], feature_dim: int, num_classes: int, layer: str | None = None
) -> Facts:
    """Make a network with random weights, and measure it."""
    with one_thread(), seeded(0, 0, 0):
        model = network(item, shape, feature_dim, num_classes, layer).train()  # untrained running statistics say little
        inputs = random_batch(SAMPLES, shape)
        try:
            with torch.no_grad():
                z = model.features(inputs)  # (16, d)
        except Exception as error:
            if lacks_memory(error):
                raise
            said = told(error) if isinstance(item, str) else call_failure(error, item)
            raise ValueError(f"The network {named(item)} does not take samples of shape {shape}: {said}") from error
        if z.shape != (SAMPLES, feature_dim):
            raise ValueError(
                f"The network {named(item)} gives features {tuple(z.shape)} for {SAMPLES} samples; "
                f"expected {(SAMPLES, feature_dim)}."
            )
        cuts = [part for part in model.features.modules() if isinstance(part, Cut)]
        return Facts(
            network=named(item),
            layer=cuts[0].layer if cuts else None,
            width=cuts[0].width if cuts else z.shape[1],
            feature_dim=z.shape[1],
            base=parameters(model.features),
            head=parameters(model.head),
            macs=macs(model.eval(), inputs[:1]),
            smallest=float(z.min()),
            negative=float((z < 0).double().mean()),
        )


def parameters(module: nn.Module) -> int:
    """Count the trained numbers."""
    return sum(weight.numel() for weight in module.parameters())


def macs(model: SplitModel, sample: torch.Tensor) -> int:
    """Count the multiplications and additions of one forward pass, in convolutions and matrix products."""
    counter = FlopCounterMode(display=False)
    with counter, torch.enable_grad():  # without gradients torch may take a fused path that is not counted
        model(sample)
    return int(counter.get_total_flops()) // 2
