"""Partitions by quantity, feature, group or index file, and by partitioners of flwr-datasets."""

import copy
import hashlib
import json
from dataclasses import field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, Fraction, Positive, Whole, shown
from protonorm.data.access import real_path, require_file, require_room
from protonorm.data.dataset import Dataset, split_numbers
from protonorm.data.partitions import DataPartition, Seed, Shares, default_least, require_enough
from protonorm.data.partitions import Index as Positions
from protonorm.data.prepared import open_npz


@dataclass(frozen=True, config=STRICT)
class Quantity:
    """Partition regardless of class, in numbers drawn from Dir(α·1_M) until every client has enough samples."""

    alpha: Positive = 0.5  # α; the smaller, the more unequal
    least: Count | None = None  # minimum number of samples per client; None: 40, or half an equal share if that is less
    retries: Count = 1000  # draws before an error is raised
    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Positions]:
        """Return each client's samples, sorted."""
        least = self.least or default_least(len(labels), clients)
        require_enough(labels, clients, least)
        random = np.random.default_rng(self.seed)
        for _ in range(self.retries):
            shares = random.dirichlet(np.full(clients, self.alpha))
            cuts = np.rint(np.cumsum(shares) * len(labels)).astype(np.int64)[:-1]
            sizes = np.diff(cuts, prepend=0, append=len(labels))
            if np.isfinite(shares).all() and sizes.min() >= least:
                return [np.sort(share) for share in np.split(random.permutation(len(labels)), cuts)]
        raise ValueError(
            f"partition.alpha={self.alpha:g} gave each of {clients} clients at least {least} samples in none of "
            f"{self.retries} draws; use a larger alpha, fewer clients or a smaller partition.least."
        )


@dataclass(frozen=True, config=STRICT)
class Feature(DataPartition):
    """Partition along a feature, with the same classes for all: client 0 has the smallest values of each class.

    The feature is the brightness of a picture, or a column of vectors. With strictness s, samples are ordered by
    s·z + (1 − s)·ε, where z is the feature with mean 0 and deviation 1, and ε ~ N(0, 1).
    """

    strictness: Annotated[float, *Fraction.__metadata__] = 1.0  # s
    column: Whole = 0  # of vectors
    seed: Seed = 1

    def shares(self, data: Dataset, clients: int) -> Shares:
        """Return each client's samples, sorted, in equal numbers."""
        labels, inputs = data.labels, data.inputs
        require_enough(labels, clients)
        if inputs.ndim == 4:
            values = inputs.reshape(len(inputs), -1).sum(1, dtype=np.int64).astype(np.float64)
        elif inputs.dtype == np.float32 and self.column < inputs.shape[1]:
            values = inputs[:, self.column].astype(np.float64)
        else:
            reason = (
                f"they have columns 0 to {inputs.shape[1] - 1}" if inputs.dtype == np.float32 else "these are tokens"
            )
            raise ValueError(f"partition=feature needs pictures, or vectors with column {self.column}, but {reason}.")
        deviation = values.std() or 1.0
        noise = np.random.default_rng(self.seed).standard_normal(len(values))
        key = self.strictness * (values - values.mean()) / deviation + (1 - self.strictness) * noise
        order = np.lexsort((key, labels))  # by class, then by key
        counts = np.bincount(labels)
        rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
        by_rank = order[np.argsort((rank + 0.5) / np.repeat(counts, counts), kind="stable")]
        return Shares([np.sort(share) for share in np.array_split(by_rank, clients)])


@dataclass(frozen=True, config=STRICT)
class Natural(DataPartition):
    """Partition by the groups that the data name: domains, writers, sites.

    With M ≥ G clients, a client has samples of one group: group g is shared by ⌊M/G⌋ or one more clients, the largest
    groups by more. With fewer clients, each has several whole groups, drawn at random.
    """

    seed: Seed = 1

    def shares(self, data: Dataset, clients: int) -> Shares:
        """Return each client's samples, sorted."""
        if data.groups is None:
            where = "dataset=domains:PATH, dataset.group=COLUMN, an array `groups` in an .npz file, or pn.Dataset(…)"
            raise ValueError(f"partition=natural needs data with groups: {where}.")
        require_enough(data.labels, clients)
        random = np.random.default_rng(self.seed)
        names, number, sizes = np.unique(data.groups, return_inverse=True, return_counts=True)
        order = random.permutation(len(number))
        members = np.split(order[np.argsort(number[order], kind="stable")], np.cumsum(sizes)[:-1])
        if clients < len(names):
            owner = np.empty(len(names), np.int64)
            owner[random.permutation(len(names))] = np.arange(len(names)) % clients
            return Shares([np.flatnonzero(owner[number] == id) for id in range(clients)])
        several = np.full(len(names), clients // len(names))
        several[np.argsort(-sizes, kind="stable")[: clients % len(names)]] += 1
        if (sizes < several).any():
            at = int((several - sizes).argmax())
            raise ValueError(f"The group {shown(str(names[at]))} has {sizes[at]} samples for {several[at]} clients.")
        pieces = [np.array_split(group, count) for group, count in zip(members, several, strict=True)]
        return Shares([np.sort(share) for shares in pieces for share in shares])


@dataclass(frozen=True, config=STRICT)
class Index(DataPartition):
    """Partition that a file gives, by the positions of samples in the data set; samples may be left out.

    .npz: `owner` (N,), the client of each sample or −1 for none, and perhaps `split` (N,), 0 training and 1 test.
    .json: a list with, for each client, a list of positions, or {"train": […], "test": […]}.
    """

    path: Path
    seed: Seed = 1

    @property
    def content(self) -> bytes:
        """Bytes of the file."""
        size = require_file(path := real_path(self.path), "index file").st_size
        require_room(size, str(path), "an index file is smaller.")
        return path.read_bytes()

    def description(self) -> dict[str, Any]:
        """Return the description for an experiment's key, independent of the file's path."""
        return {"name": "index", "seed": self.seed, "sha256": hashlib.sha256(self.content).hexdigest()}

    def shares(self, data: Dataset, clients: int) -> Shares:
        """Return each client's samples, and the split if the file has one."""
        path, samples = real_path(self.path), len(data.labels)
        shares = _from_npz(path, samples) if path.suffix == ".npz" else _from_json(self.content, path, samples)
        if len(shares.positions) != clients:
            raise ValueError(f"clients must be {len(shares.positions)}, as many as {path} has, got {clients}.")
        return shares


def _from_npz(path: Path, samples: int) -> Shares:
    with open_npz(path, "an index") as file:
        owner, split = file.read("owner"), file.get("split")
        for name, array in (("owner", owner), ("split", owner if split is None else split)):
            if array.shape != (samples,) or array.dtype.kind not in "iu" or array.max() >= samples:
                raise ValueError(f"{name} has type {array.dtype} {array.shape}; expected ({samples},) clients or parts")
        positions = [np.flatnonzero(owner == id) for id in range(int(owner.max()) + 1)]
        return Shares(positions, None if split is None else split_numbers(split))


def _from_json(content: bytes, path: Path, samples: int) -> Shares:
    split = np.full(samples, -1, np.int8)
    try:
        clients = [client if isinstance(client, dict) else {"": client} for client in json.loads(content)]
        positions = [[item for part in client.values() for item in part] for client in clients]
        if any(type(item) is not int for share in positions for item in share):
            raise ValueError("a position is no whole number")
        shares = [np.array(share, np.int64) for share in positions]
        for client in clients:
            split[np.array(client.get("train", []), np.int64)] = 0
            split[np.array(client.get("test", []), np.int64)] = 1
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        form = "a list with, for each client, a list of positions, or {'train': […], 'test': […]}"
        raise ValueError(f"{path} must hold {form}, but it cannot be read so: {error}.") from None
    return Shares(shares, split)


@dataclass(frozen=True, config=STRICT)
class Partitioner(DataPartition):
    """Partition by an object with the interface of partitioners of flwr-datasets.

    It gets a dataset of `datasets` with the columns `label`, `position` and, if the data have groups, `group`.
    """

    partitioner: Any = field(compare=False)
    seed: Seed = 1

    @property
    def name(self) -> str:
        """Name in records."""
        return type(self.partitioner).__name__

    def description(self) -> dict[str, Any]:
        """Return the description for an experiment's key: all plain data and arrays that the object holds."""
        held = {name.strip("_"): _plain(value) for name, value in sorted(vars(self.partitioner).items())}
        plain = {name: value for name, value in held.items() if value is not None}
        return plain | {"name": self.name, "seed": self.seed}

    def shares(self, data: Dataset, clients: int) -> Shares:
        """Return each client's samples, as the partitioner assigns them."""
        if find_spec("datasets") is None:
            raise ValueError("A partitioner needs Hugging Face datasets: pip install '.[hf]' in a checkout.")
        columns = {"label": data.labels, "position": np.arange(len(data.labels))}
        columns |= {} if data.groups is None else {"group": data.groups}
        partitioner = copy.deepcopy(self.partitioner)  # it takes a dataset once
        partitioner.dataset = import_module("datasets").Dataset.from_dict(columns)
        if (count := partitioner.num_partitions) != clients:
            raise ValueError(f"clients must be {count}, as many as {self.name} has partitions, got {clients}.")
        loaded = [partitioner.load_partition(id)["position"] for id in range(clients)]
        return Shares([np.sort(np.array(list(positions), np.int64)) for positions in loaded])


def _plain(value: Any) -> Any:
    """Return a setting as plain data, an array as its hash; None if it is neither."""
    if isinstance(value, np.ndarray):
        return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else None
