"""Faster forms of networks: layers whose standard implementation is slow on a CPU, and code that torch compiles.

A lowered layer keeps its parameters, its names in the state and its hooks; only the computation differs. Results agree
up to the rounding of sums, so a run's key includes whether networks were lowered, and whether they were compiled.
"""

import os
import sys
import sysconfig
from abc import ABC, abstractmethod
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import pad
from torch.nn.grad import conv2d_input

from protonorm.core import SplitModel
from protonorm.core.text import shortened
from protonorm.core.training import Compile
from protonorm.errors import Failed

Pair = tuple[int, int]
MAX_PAIRS = 256  # pairs (output point, input point) up to which enumerating all pairs is fast
MAX_POINTS = 4  # of an input map, up to which …
MOST_CODES = 1024  # compiled for a process: one for each network and batch size
MIN_CHANNELS = 256  # … from so many channels on the standard weight gradient of dense convolutions is slow


class Window(NamedTuple):
    """Kernel size, stride and zero padding of a convolution."""

    kernel: Pair
    stride: Pair
    padding: Pair

    @classmethod
    def of(cls, layer: nn.Conv2d) -> "Window":
        """Return the window of a layer."""
        return cls(cast(Pair, layer.kernel_size), cast(Pair, layer.stride), cast(Pair, layer.padding))

    @property
    def is_centred(self) -> bool:
        """Whether the middle tap is on the first point at the kernel's first position."""
        return all(size == 2 * around + 1 for size, around in zip(self.kernel, self.padding, strict=True))

    def out(self, size: Pair) -> Pair:
        """Return the output size (H', W') for maps (H, W)."""
        height, width = ((points + 2 * p - k) // s + 1 for points, k, s, p in zip(size, *self, strict=True))
        return height, width

    def pairs(self, size: Pair) -> int:
        """Return the number of pairs of an output point and an input point."""
        height, width = self.out(size)
        return height * width * size[0] * size[1]

    def windows(self, input: Tensor) -> Tensor:
        """Return all kernel windows of maps (B, C, H, W) as a view (B, H', W', k, k', C)."""
        (down, right), (top, left) = self.stride, self.padding
        padded = pad(input.permute(0, 2, 3, 1), (0, 0, left, left, top, top))  # (B, H + 2p, W + 2p', C)
        return padded.unfold(1, self.kernel[0], down).unfold(2, self.kernel[1], right).permute(0, 1, 2, 4, 5, 3)


@cache
def _taps(window: Window, size: Pair) -> Tensor:
    """Return which tap, if any, connects each output point with each point of maps (H, W): 0 or 1 (P·Q, k·k')."""
    axes = zip(window.out(size), size, *window, strict=True)
    rows, columns = (_taps_along(*axis) for axis in axes)  # (H', H, k), (W', W, k')
    return torch.einsum("ahi,bwj->abhwij", rows, columns).reshape(window.pairs(size), -1)


def _taps_along(out: int, points: int, kernel: int, stride: int, padding: int) -> Tensor:
    offset = torch.arange(points) + padding - stride * torch.arange(out)[:, None]  # (out, points)
    return (offset[..., None] == torch.arange(kernel)).float()


class PointwiseConv2d(nn.Conv2d):
    """1×1 convolution as a matrix product on channels_last maps, which needs no reordered weights."""

    def forward(self, input: Tensor) -> Tensor:
        """Map the channels of every point: (B, C, H, W) to (B, C', H', W')."""
        if input.ndim != 4:
            return super().forward(input)
        down, right = self.stride
        points = input.permute(0, 2, 3, 1)[:, ::down, ::right]  # (B, H', W', C)
        # As rows: torch multiplies maps of one point, whose strides are ambiguous, by a copy of the weight for each.
        answers = functional.linear(points.flatten(0, 2), self.weight.flatten(1), self.bias)
        return answers.view(*points.shape[:3], -1).permute(0, 3, 1, 2)


class SmallMapConv2d(nn.Conv2d, ABC):
    """Convolution with special implementations for maps of a single point and of few points."""

    def forward(self, input: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H', W')."""
        if input.ndim != 4:
            return super().forward(input)
        window, size = Window.of(self), (input.shape[2], input.shape[3])
        if size == (1, 1) and window.is_centred:
            row, column = window.padding  # the middle tap: all other taps cover only padding
            return self._point(*_cast(input, self.weight[:, :, row, column]))
        if not self._is_slow(window, size):
            return super().forward(input)
        maps: Tensor = Convolution.apply(*_cast(input, self.weight), window)  # type: ignore[no-untyped-call]  # torch's own
        return _with_bias(maps, self.bias)

    @abstractmethod
    def _point(self, input: Tensor, tap: Tensor) -> Tensor:
        """Apply a single tap (C', C or 1)."""

    @abstractmethod
    def _is_slow(self, window: Window, size: Pair) -> bool:
        """Return whether the standard implementation is slow on maps of a size."""


class DenseConv2d(SmallMapConv2d):
    """Convolution over all channels; deep in a network its maps are small."""

    def _point(self, input: Tensor, tap: Tensor) -> Tensor:
        return functional.linear(input.flatten(1), tap, self.bias)[:, :, None, None]

    def _is_slow(self, window: Window, size: Pair) -> bool:
        return size[0] * size[1] <= MAX_POINTS and self.in_channels >= MIN_CHANNELS


class DepthwiseConv2d(SmallMapConv2d):
    """Depthwise convolution; deep in a network its maps are smaller than its kernel.

    It is computed in float32 also where autocast is on: with stride 2, bfloat16 takes up to 50 times as long.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H', W')."""
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float() if input.dtype == torch.bfloat16 else input).to(input.dtype)

    def _point(self, input: Tensor, tap: Tensor) -> Tensor:
        return _with_bias(input * tap[:, :, None], self.bias)

    def _is_slow(self, window: Window, size: Pair) -> bool:
        smaller = size[0] < window.kernel[0] and size[1] < window.kernel[1]
        return smaller and window.pairs(size) <= MAX_PAIRS


class Convolution(torch.autograd.Function):
    """Convolution whose weight gradient is a matrix product.

    The standard kernel for that gradient is optimised for large maps: on small ones it takes up to 100 times as long.
    """

    @staticmethod
    def forward(context: Any, input: Tensor, weight: Tensor, window: Window) -> Tensor:
        """Compute the standard convolution."""
        context.save_for_backward(input, weight)
        context.window = window
        return functional.conv2d(input, weight, None, window.stride, window.padding, groups=_groups(input, weight))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Compute the gradients of input and weight, given that of the output (B, C', H', W')."""
        (gradient,), (input, weight), window = gradients, context.saved_tensors, context.window
        groups, (input_wanted, weight_wanted, _) = _groups(input, weight), context.needs_input_grad
        of_input = of_weight = None
        if input_wanted:
            of_input = conv2d_input(input.shape, weight, gradient, window.stride, window.padding, groups=groups)
        if weight_wanted:
            of_weight = (_dense_gradient if groups == 1 else _depthwise_gradient)(input, gradient, window)
        return of_input, of_weight, None


def _dense_gradient(input: Tensor, gradient: Tensor, window: Window) -> Tensor:
    """Multiply every input window by the gradient of its output point: (C', C, k, k')."""
    windows = window.windows(input)  # (B, H', W', k, k', C)
    answers = gradient.permute(0, 2, 3, 1).flatten(0, 2)  # (B·H'·W', C')
    product = answers.T @ windows.flatten(0, 2).flatten(1)
    return product.view(-1, *windows.shape[3:]).permute(0, 3, 1, 2)


def _depthwise_gradient(input: Tensor, gradient: Tensor, window: Window) -> Tensor:
    """Sum input × gradient over all pairs of points that a tap connects: (C, 1, k, k')."""
    points = input.permute(0, 2, 3, 1).flatten(1, 2)  # (B, Q, C)
    answers = gradient.permute(0, 2, 3, 1).flatten(1, 2)  # (B, P, C)
    products = (answers[:, :, None] * points[:, None]).sum(0)  # (P, Q, C)
    taps = _taps(window, (input.shape[2], input.shape[3])).to(products)  # (P·Q, k·k')
    return (taps.T @ products.flatten(0, 1)).T.reshape(-1, 1, *window.kernel)


def _groups(input: Tensor, weight: Tensor) -> int:
    return input.shape[1] // weight.shape[1]


def _with_bias(maps: Tensor, bias: Tensor | None) -> Tensor:
    return maps if bias is None else maps + bias[:, None, None].to(maps.dtype)


def _cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors as autocast does for torch's own convolutions."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype("cpu")) for tensor in tensors)


def to_channels_last(network: SplitModel, *, lowered: bool) -> SplitModel:
    """Convert a network to channels_last memory, as images are stored, and lower it if `lowered`."""
    converted: SplitModel = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a stub lacks it
    if lowered:
        lower(converted)
    return converted


def lower(network: nn.Module) -> None:
    """Replace the class of every layer by its fastest exact implementation, in place."""
    for layer in network.modules():
        if form := _form(layer):
            layer.__class__ = form  # parameters, buffers and hooks are kept


def _form(layer: nn.Module) -> type[nn.Conv2d] | None:
    """Return the faster class of a layer; None for subclasses, whose behaviour is unknown."""
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros":
        return None
    if isinstance(layer.padding, str) or layer.dilation != (1, 1):
        return None
    if layer.groups == 1:
        unpadded_point = layer.kernel_size == (1, 1) and layer.padding == (0, 0)
        return PointwiseConv2d if unpadded_point else DenseConv2d
    return DepthwiseConv2d if layer.groups == layer.in_channels == layer.out_channels else None


def check_compile(compile: Compile, device: str) -> None:
    """Raise ValueError if networks cannot be compiled for a device here."""
    if not compile:
        return
    on_cpu = device == "cpu"
    if compile == "graphs" and on_cpu:
        raise ValueError("compile=graphs must be with device=cuda, which alone has CUDA graphs, got device='cpu'.")
    compiler = os.environ.get("CXX") or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if on_cpu and not which(compiler):
        lacks = f"a C++ compiler, and there is no {shortened(compiler)} (CXX names another)"
    elif on_cpu and not header.is_file():
        lacks = f"Python's headers, and {header} is missing"
    elif not on_cpu and find_spec("triton") is None:
        lacks = "the package triton on a GPU, and it is not installed"
    else:
        return
    raise ValueError(f"compile={str(compile).lower()} needs {lacks}; compile=false needs nothing.")


def compile_features(model: SplitModel, *, graphs: bool) -> None:
    """Compile the features of a network for its training.

    There is code for each batch size, whatever came before: results must not depend on which clients a process has
    seen. Copies of the network are not compiled.
    """
    part = model.features

    @cache
    def fast() -> Any:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes beside the engine's
        from torch._dynamo import config  # takes seconds

        config.recompile_limit = config.accumulated_recompile_limit = MOST_CODES
        mode = "reduce-overhead" if graphs else None
        return torch.compile(lambda *inputs: part.forward(*inputs), dynamic=False, mode=mode)

    def call(*inputs: Tensor) -> Any:
        if not (part.training and torch.is_grad_enabled()):
            return part._call_impl(*inputs)
        compiled = fast()
        from torch._dynamo.exc import TorchDynamoException

        try:
            return compiled(*inputs)
        except TorchDynamoException as error:
            reason = shortened(str(error).strip().splitlines()[0])
            raise Failed(f"A network cannot be compiled: {reason}; compile=false trains it.") from error

    part._compiled_call_impl = call  # `compile` of a module does nothing for those of torch, such as nn.Sequential
