"""Samples of a client: indices into arrays that all clients of a process share."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from protonorm.core.training import Augmentation

MAX_CACHED = 3 * 2**17  # largest number of values in a batch whose activations fit into CPU caches
MIN_BATCH, MAX_BATCH = 32, 256  # bounds of the batch size without gradients
MARGIN = 8  # `crop` shifts an image by at most 1/MARGIN of its side: 4 pixels of 32


@dataclass(frozen=True, eq=False)
class Samples:
    """Part of a client's data, such as its training part."""

    inputs: Tensor  # images (N, H, W, C) uint8, vectors (N, D) float32, tokens (N, L) int64: the whole data set
    targets: Tensor  # (N,) int64: the whole data set
    index: Tensor  # (n,) int64: positions of the part
    further: Tensor | None = None  # (N, D') further columns of vectors: features of the second network's trunk

    @classmethod
    def of(cls, inputs: NDArray[Any], labels: NDArray[np.int64], index: NDArray[np.int64]) -> Self:
        """Create a part of two arrays without copying them."""
        return cls(view(inputs), view(labels), view(index))

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Self:
        """Create a part without samples for inputs of a shape."""
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, *shape), empty, empty)

    def __len__(self) -> int:
        """Return the number of samples, n."""
        return len(self.index)

    @cached_property
    def labels(self) -> Tensor:
        """Labels of the part, (n,), on the CPU."""
        return self.targets[self.index].cpu()

    def class_counts(self, num_classes: int) -> Tensor:
        """Count the samples of each class, (K,)."""
        return torch.bincount(self.labels, minlength=num_classes)

    def batch(
        self, positions: Tensor, device: str | torch.device = "cpu", change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and labels at positions (B,) of the part; `change` is applied to the inputs as stored."""
        rows = self.index[positions.to(self.index.device)]
        parts = [self.inputs] if self.further is None else [self.inputs, self.further]
        x = (
            torch.cat([part.index_select(0, rows) for part in parts], 1)
            if len(parts) > 1
            else parts[0].index_select(0, rows)
        )
        x, y = x.to(device, non_blocking=True), self.targets[rows].to(device, non_blocking=True)
        return as_input(x if change is None else change(x)), y

    def sweep(self, size: int | None = None, device: str | torch.device = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the part once in its order, `size` samples at a time; the last batch may be smaller."""
        size = size or evaluation_batch(self.inputs)
        for start in range(0, len(self), size):
            yield self.batch(torch.arange(start, min(start + size, len(self)), device=self.index.device), device)


def evaluation_batch(inputs: Tensor) -> int:
    """Return the batch size for computation without gradients: smaller for larger inputs."""
    numbers = max(1, inputs[0:1].numel())
    return min(MAX_BATCH, max(MIN_BATCH, MAX_CACHED // numbers))


def as_input(x: Tensor) -> Tensor:
    """Convert stored samples to network inputs.

    Bytes are scaled to [−1, 1]: x/255 is normalised with mean 0.5 and standard deviation 0.5.
    Images (B, H, W, C) become (B, C, H, W) in channels_last memory, as stored; vectors and tokens are unchanged.
    """
    if x.dtype == torch.uint8:
        x = x.to(torch.float32).div_(127.5).sub_(1.0)  # bit-identical to (x/255 − 0.5)/0.5
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def view(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor, without a copy if it is contiguous."""
    with warnings.catch_warnings():
        # Data sets are never written to, so memory-mapped and other read-only arrays are safe.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))


def augmentation(name: str) -> Callable[[Tensor], Tensor] | None:
    """Return the function that augments a batch of stored images; None for no augmentation."""
    if name not in get_args(Augmentation):
        raise ValueError(f"augment must be one of {', '.join(get_args(Augmentation))}, got {name!r}.")
    return None if name == "none" else partial(augmented, moved=name == "crop+flip")


def augmented(pictures: Tensor, *, moved: bool) -> Tensor:
    """Flip images (B, H, W, C) with probability 1/2; if `moved`, crop at random from a zero margin of an eighth."""
    count, height, width, _ = pictures.shape
    top, left = (height // MARGIN, width // MARGIN) if moved else (0, 0)
    mirrored = torch.rand(count, 1) < 0.5  # (B, 1)
    rows, columns = torch.arange(height).expand(count, -1), torch.arange(width).expand(count, -1)  # (B, H), (B, W)
    columns = torch.where(mirrored, columns.flip(1), columns)
    if moved:
        rows = rows + torch.randint(2 * top + 1, (count, 1))
        columns = columns + torch.randint(2 * left + 1, (count, 1))
        pictures = pad(pictures, (0, 0, left, left, top, top))  # (B, H + 2a, W + 2b, C)
    samples = torch.arange(count, device=pictures.device)[:, None, None]
    rows, columns = (places.to(pictures.device, non_blocking=True) for places in (rows, columns))
    return pictures[samples, rows[:, :, None], columns[:, None, :]]
