"""Convolutions as matrix products: of single points always, of small maps where the usual kernels are slow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from protonorm.models.lowering.window import Pair, Window

MOST_PAIRS = 256  # (a point of the output, a point of the input): up to so many, looking at every pair is fast
MOST_POINTS = 16  # of an output map, up to which the usual kernel for a dense kernel's gradient is slow
FEWEST_CHANNELS = 32  # of an input, from which the copy of all windows is cheap beside the product


class PointwiseConv2d(nn.Conv2d):
    """A 1×1 convolution: on channels_last maps it is a matrix product, and needs no reordered weights."""

    def forward(self, input: Tensor) -> Tensor:
        """Mix the channels of every point: (B, C, H, W) to (B, C', H', W')."""
        if input.ndim != 4:
            return super().forward(input)
        down, right = self.stride
        points = input.permute(0, 2, 3, 1)[:, ::down, ::right]  # (B, H', W', C)
        return functional.linear(points, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class SmallMapConv2d(nn.Conv2d, ABC):
    """A convolution that has other forms on maps of one point, and of few."""

    def forward(self, input: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H', W')."""
        if input.ndim != 4:
            return super().forward(input)
        window, size = Window.of(self), (input.shape[2], input.shape[3])
        if size == (1, 1) and window.is_centred:
            return self._point(input, *window.centre)  # all other taps see nothing but padding
        if not self._is_slow(window, size):
            return super().forward(input)
        return _with_bias(_convolve(input, self.weight, window), self.bias)

    @abstractmethod
    def _point(self, input: Tensor, row: int, column: int) -> Tensor:
        """Apply the tap of a row and column alone."""

    @abstractmethod
    def _is_slow(self, window: Window, size: Pair) -> bool:
        """Tell whether the usual kernel is slow on maps of a size."""


class DenseConv2d(SmallMapConv2d):
    """A convolution that mixes all channels; deep in a network its maps are small."""

    def _point(self, input: Tensor, row: int, column: int) -> Tensor:
        mixed = functional.linear(input.flatten(1), self.weight[:, :, row, column], self.bias)
        return mixed[:, :, None, None]

    def _is_slow(self, window: Window, size: Pair) -> bool:
        height, width = window.out(size)
        return height * width <= MOST_POINTS and self.in_channels >= FEWEST_CHANNELS


class DepthwiseConv2d(SmallMapConv2d):
    """A convolution of each channel by itself; deep in a network its maps are smaller than its kernel."""

    def _point(self, input: Tensor, row: int, column: int) -> Tensor:
        return _with_bias(input * self.weight[:, 0, row, column, None, None], self.bias)

    def _is_slow(self, window: Window, size: Pair) -> bool:
        return not window.is_inside(size) and window.pairs(size) <= MOST_PAIRS


class Convolution(torch.autograd.Function):
    """A convolution whose gradient of the weights is a matrix product.

    The usual kernel for that gradient is made for large maps: on small ones it takes up to a hundred times as long.
    """

    @staticmethod
    def forward(context: Any, input: Tensor, weight: Tensor, window: Window) -> Tensor:
        """Convolve as usual."""
        context.save_for_backward(input, weight)
        context.window = window
        return functional.conv2d(input, weight, None, window.stride, window.padding, groups=_groups(input, weight))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Give the gradients of input and weight, given that of the output (B, C', H', W')."""
        (gradient,), (input, weight), window = gradients, context.saved_tensors, context.window
        groups, (input_wanted, weight_wanted, _) = _groups(input, weight), context.needs_input_grad
        of_input = of_weight = None
        if input_wanted:
            of_input = conv2d_input(input.shape, weight, gradient, window.stride, window.padding, groups=groups)
        if weight_wanted:
            of_weight = (_dense_gradient if groups == 1 else _depthwise_gradient)(input, gradient, window)
        return of_input, of_weight, None


def _convolve(input: Tensor, weight: Tensor, window: Window) -> Tensor:
    return cast(Tensor, Convolution.apply(input, weight, window))  # type: ignore[no-untyped-call]  # torch's own


def _dense_gradient(input: Tensor, gradient: Tensor, window: Window) -> Tensor:
    """Multiply every window of the input with the gradient of the point that it made: (C', C, k, k')."""
    windows = window.windows(input)  # (B, H', W', k, k', C)
    answers = gradient.permute(0, 2, 3, 1).flatten(0, 2)  # (B·H'·W', C')
    product = answers.T @ windows.flatten(0, 2).flatten(1)
    return product.view(-1, *windows.shape[3:]).permute(0, 3, 1, 2)


def _depthwise_gradient(input: Tensor, gradient: Tensor, window: Window) -> Tensor:
    """Sum input × gradient over all pairs of points that a tap joins: (C, 1, k, k')."""
    points = input.permute(0, 2, 3, 1).flatten(1, 2)  # (B, Q, C)
    answers = gradient.permute(0, 2, 3, 1).flatten(1, 2)  # (B, P, C)
    products = (answers[:, :, None] * points[:, None]).sum(0)  # (P, Q, C)
    taps = window.taps((input.shape[2], input.shape[3])).to(products)  # (P·Q, k·k')
    return (taps.T @ products.flatten(0, 1)).T.reshape(-1, 1, *window.kernel)


def _groups(input: Tensor, weight: Tensor) -> int:
    return input.shape[1] // weight.shape[1]


def _with_bias(maps: Tensor, bias: Tensor | None) -> Tensor:
    return maps if bias is None else maps + bias[:, None, None]
