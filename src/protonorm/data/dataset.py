"""What a data set is, and how to take fewer samples of one. Nothing here needs torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from protonorm.core.types import shown

# pictures (N, H, W, C), vectors (N, D), tokens (N, L), of which 0 fills up short texts
Inputs = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
Names = tuple[tuple[str, ...], tuple[str, ...] | None]  # of the classes, and of the clients if they have some

MOST_TOKENS = 2**18  # different ones: a network has a row of weights for each


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples in two arrays, and perhaps to which client each belongs.

    It goes into an experiment as `dataset`. What no network could train on is refused with a ValueError.

    ```python
    import numpy as np
    import protonorm as pn

    points = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    labels = (points[:, 0] > 0).astype(np.int64)
    experiment = pn.Experiment(dataset=pn.Dataset("halves", points, labels, ("left", "right")), clients=5)
    ```
    """

    name: str  # in records and tables
    inputs: Inputs = field(repr=False)  # pictures (N, H, W, C) uint8, vectors (N, D) float32, or tokens (N, L) int64
    labels: NDArray[np.int64] = field(repr=False)  # (N,), from 0 to K − 1
    classes: tuple[str, ...]  # K names
    owner: NDArray[np.int64] | None = field(default=None, repr=False)  # (N,): each sample's client, if that is given
    split: NDArray[np.int8] | None = field(default=None, repr=False)  # (N,): 0 trains, 1 tests, −1 is undecided
    vocabulary: int | None = None  # V: tokens go from 0 to V − 1; None takes those there are
    client_names: tuple[str, ...] | None = None  # M names of the owners; None: they have numbers alone

    def __post_init__(self) -> None:
        """Refuse what no network could train on."""
        problem = _problem_with_inputs(self.inputs) or _problem_with_tokens(self)
        problem = problem or _problem_with_labels(self) or _problem_with_owners(self) or _problem_with_names(self)
        if problem:
            raise ValueError(f"Data set {self.name!r}: {problem}")
        if self.inputs.dtype == np.int64 and self.vocabulary is None:
            object.__setattr__(self, "vocabulary", int(self.inputs.max()) + 1)

    @property
    def num_classes(self) -> int:
        """Count the classes, K."""
        return len(self.classes)

    @property
    def clients(self) -> int | None:
        """Count the clients that own the samples; None if no owners are given."""
        return None if self.owner is None else int(self.owner.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Give the shape that a network is made for: (C, H, W) for pictures, (D,) for vectors, (L, V) for tokens."""
        size = self.inputs.shape[1:]
        if self.vocabulary is not None:
            return (*size, self.vocabulary)
        return (size[2], size[0], size[1]) if len(size) == 3 else size

    @property
    def models(self) -> str:
        """Name the family of networks that is usual for such data."""
        return usual_models(self.inputs)

    @property
    def names(self) -> Names:
        """Name the classes, and the clients if they have names."""
        return self.classes, self.client_names

    def load(self) -> Self:
        """Return itself, so that it can be given where an experiment takes a data set with settings."""
        return self

    def description(self) -> dict[str, Any]:
        """Describe the data set by its content, for an experiment's key."""
        digest = hashlib.sha256()
        given = (array for array in (self.owner, self.split) if array is not None)
        for array in (self.inputs, self.labels, *given):
            digest.update(np.ascontiguousarray(array).data)
        known = {} if self.vocabulary is None else {"vocabulary": self.vocabulary}
        return {"name": self.name, "samples": len(self.labels), **known, "sha256": digest.hexdigest()}


def usual_models(inputs: Inputs) -> str:
    """Name the family of networks that is usual for pictures, for vectors or for tokens."""
    return "light" if inputs.ndim == 4 else "tabular" if inputs.dtype == np.float32 else "text"


def take_samples(labels: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """Choose so many positions, sorted: the first ones of each class, in proportion to the classes' sizes."""
    if samples > len(labels):
        raise ValueError(f"dataset.samples={samples} is refused: the data set has {len(labels)}.")
    counts = np.bincount(labels)
    if samples < np.count_nonzero(counts):
        raise ValueError(
            f"dataset.samples={samples} is refused: the data set has {np.count_nonzero(counts)} classes, "
            "and each needs a sample."
        )
    order = np.argsort(labels, kind="stable")  # (N,), class after class
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - np.repeat(starts, counts)  # of a sample in its class
    turn = np.lexsort((labels[order], (rank + 0.5) / np.repeat(counts, counts)))  # all classes advance evenly
    turn = np.concatenate([turn[rank[turn] == 0], turn[rank[turn] != 0]])  # no class is left out
    return np.sort(order[turn[:samples]])


def _problem_with_inputs(inputs: Inputs) -> str | None:
    picture = inputs.ndim == 4 and inputs.dtype == np.uint8
    vector = inputs.ndim == 2 and inputs.dtype == np.float32
    tokens = inputs.ndim == 2 and inputs.dtype == np.int64
    if not picture and not vector and not tokens:
        return (
            f"the inputs have shape {inputs.shape} and type {inputs.dtype}; "
            "expected uint8 pictures (N, H, W, C), float32 vectors (N, D) or int64 tokens (N, L)."
        )
    if inputs.size == 0:
        return f"the inputs of shape {inputs.shape} are empty."
    if vector and not np.isfinite(inputs).all():
        return "the inputs hold NaN or infinite values."
    return None


def _problem_with_tokens(data: Dataset) -> str | None:
    if data.inputs.dtype != np.int64:
        return None if data.vocabulary is None else "a vocabulary is for tokens; leave it out."
    least, most = int(data.inputs.min()), int(data.inputs.max())
    known = most + 1 if data.vocabulary is None else data.vocabulary
    if least < 0 or not 2 <= known <= MOST_TOKENS or most >= known:
        return (
            f"the tokens go from {least} to {most}, of a vocabulary of {known}; "
            f"expected numbers from 0, of a vocabulary of 2 to {MOST_TOKENS}."
        )
    return None


def _problem_with_labels(data: Dataset) -> str | None:
    labels, known = data.labels, data.num_classes
    if labels.ndim != 1 or labels.dtype != np.int64:
        return f"the labels have shape {labels.shape} and type {labels.dtype}; expected int64 numbers (N,)."
    if len(labels) != len(data.inputs):
        return f"there are {len(data.inputs)} inputs but {len(labels)} labels."
    if labels.min() < 0 or labels.max() >= known:
        return f"the labels go from {labels.min()} to {labels.max()}, but {known} classes are named: 0 to {known - 1}."
    return None


def _problem_with_owners(data: Dataset) -> str | None:
    owner, split, size = data.owner, data.split, data.labels.shape
    if owner is None:
        return None if split is None else "a split without owners is not used; leave it out."
    if owner.shape != size or owner.dtype != np.int64:
        return f"the owners have shape {owner.shape} and type {owner.dtype}; expected int64 numbers {size}."
    if owner.min() < 0 or owner.max() >= len(owner) or not (held := np.bincount(owner)).all():
        return f"the owners go from {owner.min()} to {owner.max()}, but some client has no sample."
    if split is None:
        return None
    if split.shape != size or split.dtype != np.int8:
        return f"the split has shape {split.shape} and type {split.dtype}; expected int8 numbers {size}."
    training = np.bincount(owner[split <= 0], minlength=len(held))
    if not training.all():
        id = int(training.argmin())
        name = data.client_names[id] if data.client_names and id < len(data.client_names) else id
        return f"client {name} has no sample to train on."
    return None


def _problem_with_names(data: Dataset) -> str | None:
    names, clients = data.client_names, data.clients
    if names is None:
        return None
    if clients is None:
        return "names of clients without owners are not used; leave them out."
    if len(names) != clients or len(set(names)) < clients or not all(isinstance(one, str) and one for one in names):
        return f"client_names has {shown(names)}; expected {clients} different texts, one for each client."
    return None
