"""The Dataset class with its validation, subsampling, and datasets as public inputs. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from protonorm.core.registry import find
from protonorm.core.types import MOST_NUMBERS, MOST_TOKENS, InputSpec, shown
from protonorm.data import DATASETS

# images (N, H, W, C), vectors (N, D), or tokens (N, L), where 0 is padding
Inputs = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
KINDS = ((4, "uint8"), (2, "float32"), (2, "int64"))  # dimensions and types of images, vectors, tokens
MOST_UNNAMED = 10_000  # maximum number of unnamed classes; larger labels are dates or the like, not classes

Names = tuple[tuple[str, ...], tuple[str, ...] | None]  # names of the classes, and of the clients if they have names


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples in two arrays, optionally with the client that owns each sample.

    Pass it to an experiment as `dataset`.

    ```python
    import numpy as np
    import protonorm as pn

    points = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    labels = (points[:, 0] > 0).astype(np.int64)
    experiment = pn.Experiment(dataset=pn.Dataset("halves", points, labels, ("left", "right")), clients=5)
    ```

    Raises:
        ValueError: If shapes, types or values do not allow training.
    """

    name: str  # name in records and tables
    inputs: Inputs = field(repr=False)  # images (N, H, W, C) uint8, vectors (N, D) float32, or tokens (N, L) int64
    labels: NDArray[np.int64] = field(repr=False)  # (N,), from 0 to K − 1
    classes: tuple[str, ...] = ()  # K names, in any sequence or array; default: "0" to "K − 1"
    owner: NDArray[np.int64] | None = field(default=None, repr=False)  # (N,): client of each sample, if given
    split: NDArray[np.int8] | None = field(default=None, repr=False)  # (N,): 0 training, 1 test, −1 undecided
    vocabulary: int | None = None  # V: tokens are 0 to V − 1; None: the largest token + 1
    client_names: tuple[str, ...] | None = None  # M names of the owners; None if they are only numbered

    def __post_init__(self) -> None:
        """Validate the arrays, and set default class names and vocabulary."""
        for check in (_check_inputs, _check_tokens, _check_classes, _check_labels, _check_owners, _check_client_names):
            if problem := check(self):
                raise ValueError(f"Data set {self.name!r}: {problem}")
        if self.inputs.dtype == np.int64 and self.vocabulary is None:
            object.__setattr__(self, "vocabulary", int(self.inputs.max()) + 1)

    @property
    def num_classes(self) -> int:
        """Number of classes, K."""
        return len(self.classes)

    @property
    def clients(self) -> int | None:
        """Number of clients that own the samples; None without owners."""
        return None if self.owner is None else int(self.owner.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Input shape of a network: (C, H, W) for images, (D,) for vectors, (L, V) for tokens."""
        return self.spec.network_shape

    @property
    def spec(self) -> InputSpec:
        """Shape, type and vocabulary of a sample as it is stored."""
        kind: Any = str(self.inputs.dtype)
        return InputSpec(shape=self.inputs.shape[1:], type=kind, vocabulary=self.vocabulary)

    @property
    def models(self) -> str:
        """Default model family for such data."""
        return usual_models(self.inputs)

    @property
    def names(self) -> Names:
        """Names of the classes, and of the clients if they have names."""
        return self.classes, self.client_names

    def load(self) -> Self:
        """Return the dataset itself, so that it can replace a dataset with settings in an experiment."""
        return self

    def description(self) -> dict[str, Any]:
        """Return a description of the content, for an experiment's key."""
        known = {} if self.vocabulary is None else {"vocabulary": self.vocabulary}
        sha256 = content_hash(self.inputs, self.labels, self.owner, self.split)
        return {"name": self.name, "samples": len(self.labels), **known, "sha256": sha256}


def content_hash(*arrays: NDArray[Any] | None) -> str:
    """Return the SHA-256 of the arrays' values, in order; None is skipped."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def usual_models(inputs: Inputs) -> str:
    """Return the default model family for images, vectors or tokens."""
    return "light" if inputs.ndim == 4 else "tabular" if inputs.dtype == np.float32 else "text"


def take_samples(labels: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """Return `samples` sorted positions: the first ones of each class, in proportion to class sizes."""
    if samples > len(labels):
        raise ValueError(f"dataset.samples={samples} is refused: the data set has {len(labels)}.")
    counts = np.bincount(labels)
    if samples < np.count_nonzero(counts):
        raise ValueError(
            f"dataset.samples={samples} is refused: the data set has {np.count_nonzero(counts)} classes, "
            "and each needs a sample."
        )
    order = np.argsort(labels, kind="stable")  # (N,), by class
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - np.repeat(starts, counts)  # of each sample within its class
    turn = np.lexsort((labels[order], (rank + 0.5) / np.repeat(counts, counts)))  # interleave the classes evenly
    turn = np.concatenate([turn[rank[turn] == 0], turn[rank[turn] != 0]])  # keep every class
    return np.sort(order[turn[:samples]])


def _check_inputs(data: Dataset) -> str | None:
    for name in ("inputs", "labels"):
        if not isinstance(array := getattr(data, name), np.ndarray):
            return f"{name} must be a numpy array, got a {type(array).__name__}; np.array(…) makes one."
    inputs = data.inputs
    if (inputs.ndim, str(inputs.dtype)) not in KINDS:
        return (
            f"the inputs have shape {inputs.shape} and type {inputs.dtype}; "
            "expected uint8 pictures (N, H, W, C), float32 vectors (N, D) or int64 tokens (N, L)."
        )
    if inputs.size == 0:
        return f"the inputs of shape {inputs.shape} are empty."
    if max(inputs.shape[1:]) > MOST_NUMBERS:
        return f"the inputs have shape {inputs.shape}; at most {MOST_NUMBERS} numbers are taken along a side."
    if inputs.dtype == np.float32 and not np.isfinite(inputs).all():
        return "the inputs hold NaN or infinite values."
    return None


def _check_classes(data: Dataset) -> str | None:
    """Convert the class names to a tuple; number the classes if no names are given."""
    given: Any = data.classes
    names = given.tolist() if isinstance(given, np.ndarray) else [] if given is None else given
    if isinstance(names, list | tuple) and not names:
        if (most := int(data.labels.max(initial=0)) if data.labels.dtype.kind in "iu" else 0) >= MOST_UNNAMED:
            return f"the labels go up to {most}, and no classes are named; expected numbers below {MOST_UNNAMED}."
        names = list(map(str, range(most + 1)))
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return f"classes has {shown(given)}; expected the names of the classes, each a text."
    object.__setattr__(data, "classes", tuple(names))
    return None


def _check_tokens(data: Dataset) -> str | None:
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


def _check_labels(data: Dataset) -> str | None:
    labels, known = data.labels, data.num_classes
    if labels.ndim != 1 or labels.dtype != np.int64:
        return f"the labels have shape {labels.shape} and type {labels.dtype}; expected int64 numbers (N,)."
    if len(labels) != len(data.inputs):
        return f"there are {len(data.inputs)} inputs but {len(labels)} labels."
    if labels.min() < 0 or labels.max() >= known:
        return f"the labels go from {labels.min()} to {labels.max()}, but {known} classes are named: 0 to {known - 1}."
    return None


def _check_owners(data: Dataset) -> str | None:
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


def _check_client_names(data: Dataset) -> str | None:
    names, clients = data.client_names, data.clients
    if names is None:
        return None
    if clients is None:
        return "names of clients without owners are not used; leave them out."
    if len(names) != clients or len(set(names)) < clients or not all(isinstance(one, str) and one for one in names):
        return f"client_names has {shown(names)}; expected {clients} different texts, one for each client."
    return None


def public_digest(word: str) -> str:
    """Return the SHA-256 of the content of a dataset, given as NAME or KIND:PATH."""
    about = {"name": word, **_made(word).description()}
    about.pop("name")  # the same path can be written in several ways
    return hashlib.sha256(json.dumps({"kind": word.partition(":")[0], **about}, sort_keys=True).encode()).hexdigest()


def public_inputs(word: str) -> Inputs:
    """Load or map the inputs (P, …) of a dataset, training and test samples together, without labels."""
    return _loaded(word, public_digest(word))


@lru_cache(maxsize=2)  # clients in a process share the array
def _loaded(word: str, digest: str) -> Inputs:
    del digest  # only part of the cache key: changed content is loaded again
    inputs: Inputs = _made(word).load().inputs
    return inputs


def _made(word: str) -> Any:
    """Build the dataset that a word names, with default settings."""
    name, colon, path = word.partition(":")
    cls = find(DATASETS, name, "data set of public inputs").load()
    try:
        return TypeAdapter(cls).validate_python({"path": path} if colon else {})
    except ValidationError:
        known = f"{name}, without a path" if colon else f"{name}:PATH, where it is"
        raise ValueError(f"public={shown(word)} is refused: expected {known}.") from None
