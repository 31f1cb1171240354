"""What networks for pictures share: a check of the shapes they take, and stems for any number of channels."""

from __future__ import annotations

import torch
from torch import nn

SMALLEST = 16  # pixels of a side


def count_channels(shape: tuple[int, ...], name: str) -> int:
    """Count the channels of a picture (C, H, W), or refuse a shape that is no picture or too small."""
    if len(shape) != 3 or min(shape[1:]) < SMALLEST:
        raise ValueError(
            f"The network {name!r} takes pictures (C, H, W) of at least {SMALLEST}×{SMALLEST} pixels, "
            f"but the data set has samples of shape {shape}."
        )
    return shape[0]


def set_channels(network: nn.Module, count: int) -> None:
    """Make a network's first convolution read `count` channels; new weights get the deviation of the old ones."""
    stem = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    if stem.in_channels == count:
        return
    spread = float(stem.weight.detach().std())
    stem.in_channels = count
    stem.weight = nn.Parameter(torch.empty(stem.out_channels, count, *stem.kernel_size))
    nn.init.normal_(stem.weight, std=spread)
