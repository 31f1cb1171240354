"""Partitions: assign the samples of a dataset to clients, and split each share at random to train and to test on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import Annotated, Any, NamedTuple, Protocol, Self

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from protonorm.core.settings import dataclass
from protonorm.core.types import NOT_TRUTH, STRICT, Count, Positive
from protonorm.data.dataset import Dataset

Index = NDArray[np.int64]  # positions in the dataset
Seed = Annotated[int, Ge(0), Lt(2**32), NOT_TRUTH]


class ClientIndex(NamedTuple):
    """Positions of a client's samples in the dataset, in a fixed random order."""

    train: Index
    test: Index


class Parts:
    """Parts of all clients: one array of positions, offsets of the parts, and how many validate."""

    def __init__(self, index: Index, cuts: Index, validating: Index | None = None, common: Index | None = None) -> None:
        """Store positions (N,) and cuts (2M + 1,): client i trains on cuts 2i to 2i + 1, and tests on the next.

        The last validating[i] of its training samples validate, or as many as their share says. The samples `common`
        belong to no client and test all.
        """
        self.index, self.cuts, self.validating, self.common = index, cuts, validating, common

    @classmethod
    def of(
        cls, parts: Sequence[ClientIndex], validating: Sequence[int] | None = None, common: Index | None = None
    ) -> Self:
        """Concatenate single parts."""
        halves = [half for part in parts for half in part]
        counts = None if validating is None else np.array(validating, np.int64)
        index = np.concatenate(halves).astype(np.int64, copy=False)
        return cls(index, np.cumsum([0, *map(len, halves)]), counts, common)

    def __len__(self) -> int:
        return len(self.cuts) // 2  # M

    def __getitem__(self, id: int) -> ClientIndex:
        if not 0 <= id < len(self):
            raise IndexError(f"There is no client {id}; there are clients 0 to {len(self) - 1}.")
        first, middle, last = self.cuts[2 * id : 2 * id + 3]
        return ClientIndex(self.index[first:middle], self.index[middle:last])

    def sizes(self) -> Index:
        """Count each client's samples, (M, 2): training and test."""
        return np.diff(self.cuts).reshape(-1, 2)

    def class_counts(self, labels: NDArray[np.int64], num_classes: int) -> tuple[Index, Index]:
        """Count each client's samples of each class: (M, K) for training, and (M, K) for testing."""
        counts = count_classes(labels[self.index], self.cuts, num_classes).reshape(len(self), 2, num_classes)
        return counts[:, 0], counts[:, 1]


class Partition(Protocol):
    """Protocol of a partition, which assigns samples to clients."""

    @property
    def seed(self) -> int:
        """Seed of all randomness in the partition."""

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Return each client's samples, as sorted positions in `labels` (N,)."""


class Shares(NamedTuple):
    """Samples of each client, and which of all samples test, if that is given."""

    positions: list[Index]
    split: NDArray[np.int8] | None = None  # (N,): 0 training, 1 test, −1 undecided


class DataPartition(ABC):
    """Base class of partitions that need more of the data than their labels."""

    seed: Seed

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Raise a ValueError: labels do not suffice."""
        raise ValueError(f"{type(self).__name__} needs the data set: parts_of(data, …) assigns its samples.")

    @abstractmethod
    def shares(self, data: Dataset, clients: int) -> Shares:
        """Return each client's samples."""


@dataclass(frozen=True, config=STRICT)
class IID:
    """Partition with equal numbers of samples per client, drawn regardless of class."""

    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Return each client's samples, sorted."""
        require_enough(labels, clients)
        order = np.random.default_rng(self.seed).permutation(len(labels))
        return [np.sort(share) for share in np.array_split(order, clients)]


def partition(labels: NDArray[np.int64], clients: int, how: Partition, train: float = 0.75) -> Parts:
    """Assign the samples, and split each client's n at random: ⌊train·n⌋ to train, and one to test if n > 1."""
    if not 0 < train < 1:
        raise ValueError(f"train must be a share between 0 and 1, such as 0.75, got {train}.")
    shares = check_shares(how.assign(labels, clients), clients, len(labels))
    return Parts.of([split_share(share, train, [how.seed, client]) for client, share in enumerate(shares)])


def check_shares(shares: Sequence[Index], clients: int, samples: int) -> list[Index]:
    """Return each client's samples; raise a ValueError if the partition, perhaps a user's, is not one."""
    if len(shares) != clients or min(map(len, shares), default=0) == 0:
        raise ValueError(f"The partition must give each of {clients} clients at least one sample.")
    positions = np.concatenate(shares)
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise ValueError(f"The partition must give whole numbers (n,), but gave {positions.dtype} {positions.shape}.")
    if positions.min() < 0 or positions.max() >= samples or np.bincount(positions).max() > 1:
        raise ValueError(f"The partition must give positions from 0 to {samples - 1}, none of them twice.")
    return list(shares)


def count_classes(labels: NDArray[np.int64], cuts: Index, num_classes: int) -> Index:
    """Count the labels (N,) of each class in the parts between `cuts` (P + 1,): (P, K)."""
    parts = len(cuts) - 1
    owner = np.repeat(np.arange(parts), np.diff(cuts))  # (N,)
    return np.bincount(owner * num_classes + labels, minlength=parts * num_classes).reshape(parts, num_classes)


def group_by_class(labels: NDArray[np.int64]) -> list[Index]:
    """Return the positions of each class that occurs, ordered by class, then by position."""
    _, counts = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1])


def assign_counts(members: Sequence[Index], counts: NDArray[np.int64]) -> list[Index]:
    """Assign client i the next counts[k, i] members of each class k, for counts (K, M); sort each share."""
    classes, clients = counts.shape
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())  # (N,)
    samples = np.concatenate(members)
    order = np.lexsort((samples, owner))
    return np.split(samples[order], counts.sum(0).cumsum()[:-1])


def default_least(samples: int, clients: int) -> int:
    """Return the minimum number of samples per client: 40, or half an equal share if that is less."""
    return max(1, int(min(10 / (1 - 0.75), samples / clients / 2)))


def require_enough(labels: NDArray[np.int64], clients: int, least: int = 1) -> None:
    """Raise a ValueError if there are too few samples for that many clients."""
    if clients < 1:
        raise ValueError(f"clients must be at least 1, got {clients}.")
    if labels.ndim != 1 or len(labels) < clients * least:
        raise ValueError(
            f"{labels.size} samples cannot give each of {clients} clients at least {least}; "
            f"at most {labels.size // least} clients are possible."
        )


def split_share(share: Index, train: float, seed: list[int]) -> ClientIndex:
    """Split a client's share at random, regardless of class."""
    shuffled = np.random.default_rng(seed).permutation(share)
    cut = min(max(int(train * len(share)), 1), max(len(share) - 1, 1))
    return ClientIndex(shuffled[:cut], shuffled[cut:])


@dataclass(frozen=True, config=STRICT)
class Dirichlet:
    """Partition with shares of each class drawn from Dir(α·1_M), until every client has enough samples.

    The draws equal those of the paper's public code: seed 1 and α = 0.1 yield the authors' CIFAR-10 partition. The
    smaller α, the fewer clients share a class.
    """

    alpha: Positive = 0.1  # α
    least: Count | None = None  # minimum number of samples per client; None: 40, or half an equal share if that is less
    retries: Count = 1000  # draws of the whole partition before an error is raised
    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Return each client's samples, sorted."""
        require_enough(labels, clients)
        least = self.least or default_least(len(labels), clients)
        require_enough(labels, clients, least)
        random = np.random.RandomState(self.seed)  # legacy generator: new generators draw other numbers
        groups, best = group_by_class(labels), 0
        for _ in range(self.retries):
            members = [group.copy() for group in groups]
            counts = self._draw(members, clients, random)  # (K, M)
            smallest = int(counts.sum(0).min())
            if smallest >= least:
                return assign_counts(members, counts)
            best = max(best, smallest)
        raise ValueError(
            f"No Dirichlet partition with alpha={self.alpha:g} gave each of {clients} clients at least {least} "
            f"samples in {self.retries} draws; the best left a client with {best}. "
            f"Use a larger alpha, fewer clients{f', or least={best}' if best else ''}."
        )

    def _draw(self, members: list[Index], clients: int, random: np.random.RandomState) -> NDArray[np.int64]:
        """Shuffle each class in place, draw its shares, and count each client's samples of it, (K, M)."""
        equal = sum(map(len, members)) / clients  # N/M: a client with this many samples gets no further class
        counts, assigned = np.zeros((len(members), clients), np.int64), np.zeros(clients, np.int64)
        for row, group in zip(counts, members, strict=True):
            random.shuffle(group)
            open_to_more = assigned < equal
            shares = np.where(open_to_more, random.dirichlet(np.full(clients, self.alpha)), 0.0)  # (M,)
            total = float(shares.sum())
            if 0 < total < np.inf:
                shares = shares / total
            else:  # a tiny α underflows; in its limit, the whole class goes to one client, drawn uniformly
                shares = np.zeros(clients)
                shares[random.choice(np.flatnonzero(open_to_more))] = 1.0
            cuts = (np.cumsum(shares) * len(group)).astype(np.int64)[:-1]
            row[:] = np.diff(cuts, prepend=0, append=len(group))  # the rounding remainder goes to the last client
            assigned += row
        return counts


@dataclass(frozen=True, config=STRICT)
class Pathological:
    """Partition with a few classes per client in unequal numbers: blocks of clients share blocks of classes.

    A class goes to ⌈M·c/K⌉ clients, c = `classes_per_client`: the first clients with fewer than c classes. So clients
    0, 1, … share classes 0 … c − 1, the next clients the next c classes, and so on.
    """

    classes_per_client: Count = 2
    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Return each client's samples, sorted."""
        require_enough(labels, clients)
        members = group_by_class(labels)
        ranges = self._client_ranges(len(members), clients)
        least = default_least(len(labels), clients) / len(members)
        sizes, order = np.random.RandomState(self.seed), np.random.default_rng(self.seed)
        counts = np.zeros((len(members), clients), np.int64)
        for row, group, (first, last) in zip(counts, members, ranges, strict=True):
            order.shuffle(group)
            row[first:last] = _sizes(len(group), last - first, least, sizes)
        return assign_counts(members, counts)

    def _client_ranges(self, classes: int, clients: int) -> list[tuple[int, int]]:
        """Return the clients first ≤ i < last that share each class; raise a ValueError if a class has none."""

        def blocks(each: int, clients: int) -> tuple[int, int]:
            """Return the number of clients that share a class, ⌈M·c/K⌉, and of classes that have clients."""
            width = -(-clients * each // classes)
            return width, -(-clients // width) * each

        each = self.classes_per_client
        if each > classes:
            raise ValueError(f"classes_per_client must be at most {classes}, the number of classes, got {each}.")
        width, served = blocks(each, clients)
        if served < classes:
            fitting = next(c for c in range(each, classes + 1) if blocks(c, clients)[1] >= classes)
            larger = next(m for m in count(clients) if blocks(each, m)[1] >= classes)  # at most a multiple of K
            raise ValueError(
                f"{clients} clients with classes_per_client={each} leave {classes - served} of {classes} classes to "
                f"nobody, and their samples would be lost. Use classes_per_client={fitting} or clients={larger}."
            )
        starts = [k // each * width for k in range(classes)]
        return [(start, min(start + width, clients)) for start in starts]


def _sizes(samples: int, clients: int, least: float, random: np.random.RandomState) -> NDArray[np.int64]:
    """Cut a class into unequal pieces: all but the last between a tenth of an equal share and all of it."""
    if samples < clients:
        raise ValueError(f"A class of {samples} samples is too small for the {clients} clients that share it.")
    equal = samples / clients
    high = int(equal)
    low = min(max(int(max(equal / 10, least)), 1), high)
    drawn = random.randint(low, max(high, low + 1), clients - 1)
    return np.append(drawn, samples - drawn.sum())


@dataclass(frozen=True, config=STRICT)
class Given:
    """Partition that a run records if its data define which client owns which sample."""

    seed: Seed = 1  # of the split of clients without a split of their own

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Raise a ValueError: the data have no owners."""
        raise ValueError("partition=given needs data that clients own already, such as dataset=clients:PATH.")

    def description(self) -> dict[str, Any]:
        """Return the description for an experiment's key."""
        return {"name": "given", "seed": self.seed}
