"""Faster layers for a CPU: those whose usual form is slow there compute the same function in another way.

A lowered layer is the layer it was, with its parameters, its names in the state and its hooks; only the way it
computes differs. Results agree up to the rounding of sums, so a run's key says whether networks were lowered.
"""

from __future__ import annotations

import torch
from torch import nn

from protonorm.core import SplitModel
from protonorm.models.lowering.convolutions import DenseConv2d, DepthwiseConv2d, PointwiseConv2d


def laid_out(network: SplitModel, *, lowered: bool) -> SplitModel:
    """Store a network's weights as pictures are, channels last, and lower it if wanted."""
    laid: SplitModel = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a stub lacks it
    if lowered:
        lower(laid)
    return laid


def lower(network: nn.Module) -> None:
    """Give every layer of a network its fastest exact form, in place."""
    for layer in network.modules():
        if form := _form(layer):
            layer.__class__ = form  # all that it holds stays in place


def _form(layer: nn.Module) -> type[nn.Conv2d] | None:
    """Find a layer's other form; a user's own subclass of a layer may do anything, and stays as it is."""
    if type(layer) is not nn.Conv2d:
        return None
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str) or layer.dilation != (1, 1):
        return None
    if layer.groups == 1:
        unpadded_point = layer.kernel_size == (1, 1) and layer.padding == (0, 0)
        return PointwiseConv2d if unpadded_point else DenseConv2d
    return DepthwiseConv2d if layer.groups == layer.in_channels == layer.out_channels else None
