"""The Dataset class with its validation, subsampling, and datasets as public inputs. Nothing here needs torch."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from protonorm.core.registry import find
from protonorm.core.types import MAX_AXIS_LENGTH, MAX_VOCABULARY, InputSpec, shown
from protonorm.data import DATASETS

# images (N, H, W, C), vectors (N, D), or tokens (N, L), where 0 is padding
Inputs = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
KINDS = ((4, "uint8"), (2, "float32"), (2, "int64"))  # dimensions and types of images, vectors, tokens
MAX_UNNAMED = 10_000  # maximum number of unnamed classes; larger labels are dates or the like, not classes

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
    keys: NDArray[np.uint64] | None = field(default=None, repr=False)  # (N,): hash of each sample's source, if known
    groups: NDArray[Any] | None = field(default=None, repr=False)  # (N,): domain, writer, site, … as numbers or texts
    official: NDArray[np.bool_] | None = field(default=None, repr=False)  # (N,): the publishers' test samples, if known

    def __post_init__(self) -> None:
        """Validate the arrays, and set default class names and vocabulary."""
        for problem in chain(_input_problems(self), _label_problems(self), _owner_problems(self)):
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
        return default_models(self.inputs)

    @property
    def names(self) -> Names:
        """Names of the classes, and of the clients if they have names."""
        return self.classes, self.client_names

    def content_keys(self) -> NDArray[np.uint64]:
        """Return a hash of each sample (N,): of its source, or of its input."""
        return sample_keys(self.inputs) if self.keys is None else self.keys

    def load(self) -> Self:
        """Return the dataset itself, so that it can replace a dataset with settings in an experiment."""
        return self

    def description(self) -> dict[str, Any]:
        """Return a description of the content, for an experiment's key."""
        vocabulary = {} if self.vocabulary is None else {"vocabulary": self.vocabulary}
        sha256 = content_hash(self.inputs, self.labels, self.owner, self.split, self.official, self.groups)
        return {"name": self.name, "samples": len(self.labels), **vocabulary, "sha256": sha256}


def sample_keys(samples: Iterable[Any]) -> NDArray[np.uint64]:
    """Hash each sample (N,): what `b2sum -l 64` computes of its bytes; padding of tokens is left out."""
    digests = []
    for sample in samples:
        if isinstance(sample, np.ndarray):
            sample = np.ascontiguousarray(np.trim_zeros(sample, "b") if sample.dtype == np.int64 else sample)
        digests.append(hashlib.blake2b(sample, digest_size=8).digest())
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def content_hash(*arrays: NDArray[Any] | None) -> str:
    """Return the SHA-256 of the arrays' values, in order; None is skipped."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array).data if array.dtype.kind != "U" else array.tobytes())
    return digest.hexdigest()


def default_models(inputs: Inputs) -> str:
    """Return the default model family for images, vectors or tokens."""
    return "light" if inputs.ndim == 4 else "tabular" if inputs.dtype == np.float32 else "text"


def take_samples(labels: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """Return `samples` sorted positions: the first ones of each class, in proportion to class sizes."""
    if samples > len(labels):
        raise ValueError(f"dataset.samples must be at most {len(labels)}, got {samples}: there are no more.")
    counts = np.bincount(labels)
    if samples < (occurring := np.count_nonzero(counts)):
        raise ValueError(f"dataset.samples must be at least one for each of {occurring} classes, got {samples}.")
    order = np.argsort(labels, kind="stable")  # (N,), by class
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - np.repeat(starts, counts)  # of each sample within its class
    sequence = np.lexsort((labels[order], (rank + 0.5) / np.repeat(counts, counts)))  # interleave the classes evenly
    sequence = np.concatenate([sequence[rank[sequence] == 0], sequence[rank[sequence] != 0]])  # keep every class
    return np.sort(order[sequence[:samples]])


# Each check may rely on those before it: only the first problem is ever asked for.


def _input_problems(data: Dataset) -> Iterator[str]:
    for name in ("inputs", "labels"):
        if not isinstance(array := getattr(data, name), np.ndarray):
            yield f"{name} must be a numpy array, got a {type(array).__name__}; np.array(…) makes one."
    inputs = data.inputs
    if (inputs.ndim, str(inputs.dtype)) not in KINDS or channels_first(inputs):
        yield (
            f"the inputs have shape {inputs.shape} and type {inputs.dtype}; expected uint8 pictures (N, H, W, C), "
            f"float32 vectors (N, D) or int64 tokens (N, L){channels_first(inputs)}."
        )
    if inputs.size == 0:
        yield f"the inputs of shape {inputs.shape} are empty."
    if max(inputs.shape[1:]) > MAX_AXIS_LENGTH:
        yield f"the inputs have shape {inputs.shape}; at most {MAX_AXIS_LENGTH} numbers are taken along a side."
    if inputs.dtype == np.float32 and not np.isfinite(inputs).all():
        row = int((~np.isfinite(inputs)).reshape(len(inputs), -1).any(1).argmax())
        yield f"the inputs hold NaN or infinite values, first in row {row + 1}."
    if inputs.dtype == np.int64:
        smallest, largest = int(inputs.min()), int(inputs.max())
        vocabulary = largest + 1 if data.vocabulary is None else data.vocabulary
        if smallest < 0 or not 2 <= vocabulary <= MAX_VOCABULARY or largest >= vocabulary:
            yield (
                f"the tokens go from {smallest} to {largest}, of a vocabulary of {vocabulary}; "
                f"expected numbers from 0, of a vocabulary of 2 to {MAX_VOCABULARY}."
            )
    elif data.vocabulary is not None:
        yield "a vocabulary is for tokens; leave it out."


def channels_first(array: NDArray[Any]) -> str:
    """Return how to convert an array that can only be images (N, C, H, W), for the end of a message; else ""."""
    if array.ndim != 4 or array.shape[1] not in (1, 3) or min(array.shape[2:]) <= 4:
        return ""
    return "; it looks like pictures (N, C, H, W), which array.transpose(0, 2, 3, 1) turns into (N, H, W, C)"


def _label_problems(data: Dataset) -> Iterator[str]:
    """Check labels and class names; convert the names to a tuple, or number the classes if none are given."""
    labels, classes = data.labels, data.classes
    names: Any = classes.tolist() if isinstance(classes, np.ndarray) else [] if classes is None else classes
    if isinstance(names, list | tuple) and not names:
        if (largest := int(labels.max(initial=0)) if labels.dtype.kind in "iu" else 0) >= MAX_UNNAMED:
            yield f"the labels go up to {largest}, and no classes are named; expected numbers below {MAX_UNNAMED}."
        names = list(map(str, range(largest + 1)))
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        yield f"classes has {shown(classes)}; expected the names of the classes, each a text."
    object.__setattr__(data, "classes", tuple(names))
    if labels.ndim != 1 or labels.dtype != np.int64:
        yield f"the labels have shape {labels.shape} and type {labels.dtype}; expected int64 numbers (N,)."
    if len(labels) != len(data.inputs):
        yield f"there are {len(data.inputs)} inputs but {len(labels)} labels."
    if labels.min() < 0 or labels.max() >= len(names):
        last = len(names) - 1
        yield f"the labels go from {labels.min()} to {labels.max()}, but {last + 1} classes are named: 0 to {last}."
    official = data.official
    if official is not None and (official.shape != labels.shape or official.dtype != bool):
        yield f"official has shape {official.shape} and type {official.dtype}; expected truth values (N,)."
    if data.keys is not None and (data.keys.shape != labels.shape or data.keys.dtype != np.uint64):
        yield f"the keys have shape {data.keys.shape} and type {data.keys.dtype}; expected uint64 numbers (N,)."
    if (groups := data.groups) is not None and (groups.shape != labels.shape or groups.dtype.kind not in "iuU"):
        yield f"the groups have shape {groups.shape} and type {groups.dtype}; expected whole numbers or texts (N,)."


def _owner_problems(data: Dataset) -> Iterator[str]:
    """Check owners, split and client names; convert owners and a split of any integer type."""
    names, size = data.client_names, data.labels.shape
    if data.owner is None:
        if data.split is not None:
            yield "a split without owners is not used; leave it out."
        if names is not None:
            yield "names of clients without owners are not used; leave them out."
        return
    owner = np.asarray(data.owner)
    if owner.shape != size or owner.dtype.kind not in "iu":
        yield f"the owners have shape {owner.shape} and type {owner.dtype}; expected int64 numbers {size}."
    if owner.min() < 0 or owner.max() >= len(owner) or not np.bincount(owner.astype(np.int64)).all():
        yield f"the owners go from {owner.min()} to {owner.max()}, but some client has no sample."
    owner = owner.astype(np.int64, copy=False)
    object.__setattr__(data, "owner", owner)
    clients = int(owner.max()) + 1
    if data.split is not None:
        split = np.asarray(data.split)
        if split.shape != size or split.dtype.kind not in "iub":
            yield f"the split has shape {split.shape} and type {split.dtype}; expected int8 numbers {size}."
        object.__setattr__(data, "split", split_numbers(split))
        training = np.bincount(owner[split <= 0], minlength=clients)
        if not training.all():
            id = int(training.argmin())
            yield f"client {names[id] if names and id < len(names) else id} has no sample to train on."
    if names is not None and (
        len(names) != clients or len(set(names)) < clients or not all(isinstance(name, str) and name for name in names)
    ):
        yield f"client_names has {shown(names)}; expected {clients} different texts, one for each client."


def split_numbers(split: NDArray[Any]) -> NDArray[np.int8]:
    """Convert a split (N,) of truth values or any integers to int8: large numbers stay test samples."""
    numbers: NDArray[np.int8] = np.clip(split, -128 if split.dtype.kind == "i" else 0, 127).astype(np.int8)
    return numbers


def public_digest(name: str) -> str:
    """Return the SHA-256 of the content of a dataset, given as NAME or KIND:PATH."""
    source = _make(name)
    described = source if hasattr(source, "description") else source.load()  # computed data are described by content
    about = {**described.description(), "kind": name.partition(":")[0]}
    about.pop("name", None)  # the same path can be written in several ways
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def public_inputs(name: str) -> Inputs:
    """Load or map the inputs (P, …) of a dataset, training and test samples together, without labels."""
    return _load(name, public_digest(name))


@lru_cache(maxsize=2)  # clients in a process share the array; the digest has changed content loaded again
def _load(name: str, digest: str) -> Inputs:
    inputs: Inputs = _make(name).load().inputs
    return inputs


def _make(name: str) -> Any:
    """Build the dataset that a name means, with default settings."""
    kind, colon, path = name.partition(":")
    cls = find(DATASETS, kind, "data set of public inputs").load()
    try:
        return TypeAdapter(cls).validate_python({"path": path} if colon else {})
    except ValidationError:
        expected = f"{kind}, without a path" if colon else f"{kind}:PATH, where it is"
        raise ValueError(f"public must be {expected}, got {shown(name)}.") from None
