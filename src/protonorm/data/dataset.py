"""What a data set is, and a client's part of it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CACHED = 3 * 2**17  # numbers in a batch of inputs, up to which a CPU's caches hold what networks make of them
FEWEST, MOST = 32, 256  # samples of such a batch

Inputs = NDArray[np.uint8] | NDArray[np.float32]  # pictures (N, H, W, C), vectors (N, D)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples in two arrays."""

    name: str
    inputs: Inputs = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)  # (N,), from 0 to K − 1
    classes: tuple[str, ...]  # K names
    owner: NDArray[np.int64] | None = field(default=None, repr=False)  # (N,): clients, if it is dealt out already
    split: NDArray[np.int8] | None = field(default=None, repr=False)  # (N,): 0 trains, 1 tests, −1 nobody has said

    def __post_init__(self) -> None:
        """Refuse what no network could train on."""
        complaint = _complain_about_inputs(self.inputs) or _complain_about_labels(self) or _complain_about_owners(self)
        if complaint:
            raise ValueError(f"Data set {self.name!r}: {complaint}")

    @property
    def num_classes(self) -> int:
        """Count the classes, K."""
        return len(self.classes)

    @property
    def clients(self) -> int | None:
        """Count the clients that it is dealt out to already; None if it is not."""
        return None if self.owner is None else int(self.owner.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Say what a network gets: (C, H, W) for pictures, (D,) for vectors."""
        size = self.inputs.shape[1:]
        return (size[2], size[0], size[1]) if len(size) == 3 else size

    @property
    def form(self) -> dict[str, Any]:
        """Say in plain data what one sample is, as it is stored."""
        return {"shape": list(self.inputs.shape[1:]), "type": str(self.inputs.dtype)}

    def load(self) -> Self:
        """Stand where an experiment takes a data set with settings."""
        return self

    def description(self) -> dict[str, Any]:
        """Tell this data set from others in an experiment's key."""
        digest = hashlib.sha256()
        given = (array for array in (self.owner, self.split) if array is not None)
        for array in (self.inputs, self.labels, *given):
            digest.update(np.ascontiguousarray(array).data)
        return {"name": self.name, "samples": len(self.labels), "sha256": digest.hexdigest()}


@dataclass(frozen=True, eq=False)
class Samples:
    """A client's part: where its samples are in arrays that all parts share."""

    inputs: Tensor  # pictures (N, H, W, C) uint8, vectors (N, D) float32: the whole data set
    targets: Tensor  # (N,) int64: the whole data set
    index: Tensor  # (n,) int64: the part

    @classmethod
    def of(cls, dataset: Dataset, index: NDArray[np.int64]) -> Self:
        """Look at a part of a data set without copying it."""
        return cls(view(dataset.inputs), view(dataset.labels), view(index))

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

    def batch(self, positions: Tensor, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
        """Gather the samples at positions (B,) of the part, ready for a network."""
        rows = self.index[positions.to(self.index.device)]
        x = self.inputs.index_select(0, rows).to(device)
        return as_input(x), self.targets[rows].to(device)

    def sweep(self, size: int | None = None, device: str | torch.device = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """Go once through the part in its order, `size` samples at a time; the last batch may be smaller."""
        size = size or at_once(self.inputs)
        for start in range(0, len(self), size):
            yield self.batch(torch.arange(start, min(start + size, len(self))), device)


def at_once(inputs: Tensor) -> int:
    """Say how many samples to compute at once where no gradient is taken: few large pictures, many small ones."""
    numbers = max(1, inputs[:1].numel())
    return min(MOST, max(FEWEST, CACHED // numbers))


def as_input(x: Tensor) -> Tensor:
    """Turn stored samples into what a network takes.

    Bytes become numbers from −1 to 1: mean 0.5 and deviation 0.5 are taken out of x/255.
    Pictures (B, H, W, C) come as (B, C, H, W) in channels_last memory, as they are stored.
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


def _complain_about_inputs(inputs: Inputs) -> str | None:
    picture = inputs.ndim == 4 and inputs.dtype == np.uint8
    vector = inputs.ndim == 2 and inputs.dtype == np.float32
    if not picture and not vector:
        return (
            f"the inputs have shape {inputs.shape} and type {inputs.dtype}; "
            "expected uint8 pictures (N, H, W, C) or float32 vectors (N, D)."
        )
    if inputs.size == 0:
        return f"the inputs of shape {inputs.shape} are empty."
    if vector and not np.isfinite(inputs).all():
        return "the inputs hold NaN or infinite values."
    return None


def _complain_about_labels(data: Dataset) -> str | None:
    labels, known = data.labels, data.num_classes
    if labels.ndim != 1 or labels.dtype != np.int64:
        return f"the labels have shape {labels.shape} and type {labels.dtype}; expected int64 numbers (N,)."
    if len(labels) != len(data.inputs):
        return f"there are {len(data.inputs)} inputs but {len(labels)} labels."
    if labels.min() < 0 or labels.max() >= known:
        return f"the labels go from {labels.min()} to {labels.max()}, but {known} classes are named: 0 to {known - 1}."
    return None


def _complain_about_owners(data: Dataset) -> str | None:
    owner, split, size = data.owner, data.split, data.labels.shape
    if owner is None:
        return None if split is None else "a split without owners is not used; leave it out."
    if owner.shape != size or owner.dtype != np.int64:
        return f"the owners have shape {owner.shape} and type {owner.dtype}; expected int64 numbers {size}."
    if owner.min() < 0 or not (held := np.bincount(owner)).all():
        return f"the owners go from {owner.min()} to {owner.max()}, but somebody has no sample."
    if split is None:
        return None
    if split.shape != size or split.dtype != np.int8:
        return f"the split has shape {split.shape} and type {split.dtype}; expected int8 numbers {size}."
    training = np.bincount(owner[split <= 0], minlength=len(held))
    if not training.all():
        return f"client {training.argmin()} has no sample to train on."
    return None
