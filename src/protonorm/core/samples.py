"""A client's samples: positions in arrays that all clients of a process share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CACHED = 3 * 2**17  # numbers in a batch of inputs, up to which a CPU's caches hold what networks make of them
SMALLEST_BATCH, LARGEST_BATCH = 32, 256  # where no gradient is taken


@dataclass(frozen=True, eq=False)
class Samples:
    """One part of a client's data, such as its training part."""

    inputs: Tensor  # pictures (N, H, W, C) uint8, vectors (N, D) float32, tokens (N, L) int64: the whole data set
    targets: Tensor  # (N,) int64: the whole data set
    index: Tensor  # (n,) int64: the part

    @classmethod
    def of(cls, inputs: NDArray[Any], labels: NDArray[np.int64], index: NDArray[np.int64]) -> Self:
        """Look at a part of two arrays without copying them."""
        return cls(view(inputs), view(labels), view(index))

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Self:
        """Make a part without samples, of inputs of a shape."""
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, *shape), empty, empty)

    def __len__(self) -> int:
        """Count the samples, n."""
        return len(self.index)

    @cached_property
    def labels(self) -> Tensor:
        """Give the labels of the part, (n,), on the CPU."""
        return self.targets[self.index].cpu()

    def class_counts(self, num_classes: int) -> Tensor:
        """Count the samples of each class, (K,)."""
        return torch.bincount(self.labels, minlength=num_classes)

    def batch(
        self, positions: Tensor, device: str | torch.device = "cpu", change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gather the samples at positions (B,) of the part, ready for a network; `change` gets them as stored."""
        rows = self.index[positions.to(self.index.device)]
        x = self.inputs.index_select(0, rows).to(device)
        return as_input(x if change is None else change(x)), self.targets[rows].to(device)

    def sweep(self, size: int | None = None, device: str | torch.device = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """Go once through the part in its order, `size` samples at a time; the last batch may be smaller."""
        size = size or evaluation_batch(self.inputs)
        for start in range(0, len(self), size):
            yield self.batch(torch.arange(start, min(start + size, len(self))), device)


def evaluation_batch(inputs: Tensor) -> int:
    """Choose how many samples to compute at once where no gradient is taken: few large pictures, many small ones."""
    numbers = max(1, inputs[0:1].numel())
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, CACHED // numbers))


def as_input(x: Tensor) -> Tensor:
    """Turn stored samples into what a network takes.

    Bytes become numbers from −1 to 1: mean 0.5 and deviation 0.5 are taken out of x/255.
    Pictures (B, H, W, C) come as (B, C, H, W) in channels_last memory, as they are stored; vectors and tokens stay.
    """
    if x.dtype == torch.uint8:
        x = x.to(torch.float32).div_(127.5).sub_(1.0)  # bit for bit (x/255 − 0.5)/0.5
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def view(array: NDArray[Any]) -> Tensor:
    """Look at an array as a tensor."""
    with warnings.catch_warnings():
        # Nothing here writes into a data set, so that memory-mapped and other read-only arrays are welcome.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))
