"""How a kernel moves over maps."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

Pair = tuple[int, int]


class Window(NamedTuple):
    """A kernel's size, its steps, and the zeros around the maps."""

    kernel: Pair
    stride: Pair
    padding: Pair

    @classmethod
    def of(cls, layer: nn.Conv2d) -> Window:
        """Read it from a layer."""
        return cls(cast(Pair, layer.kernel_size), cast(Pair, layer.stride), cast(Pair, layer.padding))

    @property
    def centre(self) -> Pair:
        """Give the middle tap."""
        return self.kernel[0] // 2, self.kernel[1] // 2

    @property
    def is_centred(self) -> bool:
        """Tell whether the kernel's first place has its middle tap on the first point."""
        return all(size == 2 * around + 1 for size, around in zip(self.kernel, self.padding, strict=True))

    def out(self, size: Pair) -> Pair:
        """Say what size (H', W') maps (H, W) get."""
        height, width = ((points + 2 * p - k) // s + 1 for points, k, s, p in zip(size, *self, strict=True))
        return height, width

    def is_inside(self, size: Pair) -> bool:
        """Tell whether the kernel fits into maps (H, W) without touching padding."""
        return size[0] >= self.kernel[0] or size[1] >= self.kernel[1]

    def pairs(self, size: Pair) -> int:
        """Count the pairs of a point of the output and one of the input."""
        height, width = self.out(size)
        return height * width * size[0] * size[1]

    def windows(self, input: Tensor) -> Tensor:
        """Look at every place of the kernel on maps (B, C, H, W): a view (B, H', W', k, k', C)."""
        (down, right), (above, beside) = self.stride, self.padding
        padded = pad(input.permute(0, 2, 3, 1), (0, 0, beside, beside, above, above))  # (B, H + 2p, W + 2p', C)
        return padded.unfold(1, self.kernel[0], down).unfold(2, self.kernel[1], right).permute(0, 1, 2, 4, 5, 3)

    def taps(self, size: Pair) -> Tensor:
        """Say which tap, if any, joins each point of the output with each of maps (H, W): 0 or 1 (P·Q, k·k')."""
        return _taps(self, size)


@cache
def _taps(window: Window, size: Pair) -> Tensor:
    along = zip(window.out(size), size, *window, strict=True)
    rows, columns = (_taps_along(*axis) for axis in along)  # (H', H, k), (W', W, k')
    return torch.einsum("ahi,bwj->abhwij", rows, columns).reshape(window.pairs(size), -1)


def _taps_along(out: int, points: int, kernel: int, stride: int, padding: int) -> Tensor:
    offset = torch.arange(points) + padding - stride * torch.arange(out)[:, None]  # (out, points)
    return (offset[..., None] == torch.arange(kernel)).float()
