"""Assign the samples of a data set to clients, and split each client's share into a training and a test part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol, Self

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from protonorm.core.settings import dataclass
from protonorm.core.types import NOT_TRUTH, STRICT

Index = NDArray[np.int64]  # positions in the data set
Seed = Annotated[int, Ge(0), Lt(2**32), NOT_TRUTH]


class ClientIndex(NamedTuple):
    """Where a client's samples are in the data set, in a random order that never changes."""

    train: Index
    test: Index


class Parts:
    """All clients' parts: one array of positions, and where each part of it begins."""

    def __init__(self, index: Index, cuts: Index) -> None:
        """Take positions (N,) and cuts (2M + 1,): client i trains on cuts 2i to 2i + 1, and tests on the next."""
        self.index, self.cuts = index, cuts

    @classmethod
    def of(cls, parts: Sequence[ClientIndex]) -> Self:
        """Put single parts one after the other."""
        halves = [half for part in parts for half in part]
        return cls(np.concatenate(halves).astype(np.int64, copy=False), np.cumsum([0, *map(len, halves)]))

    def __len__(self) -> int:
        """Count the clients, M."""
        return len(self.cuts) // 2

    def __getitem__(self, id: int) -> ClientIndex:
        """Find a client's part."""
        if not 0 <= id < len(self):
            raise IndexError(f"There is no client {id}; there are clients 0 to {len(self) - 1}.")
        first, middle, last = self.cuts[2 * id : 2 * id + 3]
        return ClientIndex(self.index[first:middle], self.index[middle:last])

    def sizes(self) -> Index:
        """Count each client's samples, (M, 2): training and test."""
        return np.diff(self.cuts).reshape(-1, 2)

    def class_counts(self, labels: NDArray[np.int64], num_classes: int) -> tuple[Index, Index]:
        """Count each client's samples of each class: (M, K) to train on, and (M, K) to test with."""
        counts = count_classes(labels[self.index], self.cuts, num_classes).reshape(len(self), 2, num_classes)
        return counts[:, 0], counts[:, 1]


class Partition(Protocol):
    """A way to assign samples to clients."""

    @property
    def seed(self) -> int:
        """Give the seed of all that is random in it."""

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Give each client its samples, as sorted positions in `labels` (N,)."""


@dataclass(frozen=True, config=STRICT)
class IID:
    """Every client gets the same number of samples, drawn from all without regard to their class."""

    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Give each client its samples, sorted."""
        require_enough(labels, clients)
        order = np.random.default_rng(self.seed).permutation(len(labels))
        return [np.sort(share) for share in np.array_split(order, clients)]


def partition(labels: NDArray[np.int64], clients: int, how: Partition, train: float = 0.75) -> Parts:
    """Assign the samples, and split each client's share at random, without regard to classes.

    A client of n samples trains on ⌊train·n⌋ of them, at least one, and tests on the others, at least one if n > 1.
    """
    if not 0 < train < 1:
        raise ValueError(f"train={train} is refused: expected a share between 0 and 1, such as 0.75.")
    shares = how.assign(labels, clients)
    _check_shares(shares, len(labels), clients)
    return Parts.of([split_share(share, train, [how.seed, client]) for client, share in enumerate(shares)])


def count_classes(labels: NDArray[np.int64], cuts: Index, num_classes: int) -> Index:
    """Count the labels (N,) of each class in parts that are cut at `cuts` (P + 1,): (P, K)."""
    parts = len(cuts) - 1
    owner = np.repeat(np.arange(parts), np.diff(cuts))  # (N,)
    return np.bincount(owner * num_classes + labels, minlength=parts * num_classes).reshape(parts, num_classes)


def group_by_class(labels: NDArray[np.int64]) -> list[Index]:
    """List the positions of each class that occurs, in the order of the classes, then of the data set."""
    _, counts = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1])


def assign_counts(members: Sequence[Index], counts: NDArray[np.int64]) -> list[Index]:
    """Give client i the next counts[k, i] members of each class k, for counts (K, M); sort what a client gets."""
    classes, clients = counts.shape
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())  # (N,)
    samples = np.concatenate(members)
    order = np.lexsort((samples, owner))
    return np.split(samples[order], counts.sum(0).cumsum()[:-1])


def default_least(samples: int, clients: int) -> int:
    """Choose how many samples a client gets at least: 40, or half an equal share if that is less."""
    return max(1, int(min(10 / (1 - 0.75), samples / clients / 2)))


def require_enough(labels: NDArray[np.int64], clients: int, least: int = 1) -> None:
    """Refuse a number of clients that the samples cannot serve."""
    if clients < 1:
        raise ValueError(f"clients={clients} is refused: expected at least one client.")
    if labels.ndim != 1 or len(labels) < clients * least:
        raise ValueError(
            f"{labels.size} samples cannot give each of {clients} clients at least {least}; "
            f"at most {labels.size // least} clients are possible."
        )


def split_share(share: Index, train: float, seed: list[int]) -> ClientIndex:
    """Split a client's share at random, without regard to classes."""
    mixed = np.random.default_rng(seed).permutation(share)
    cut = min(max(int(train * len(share)), 1), max(len(share) - 1, 1))
    return ClientIndex(mixed[:cut], mixed[cut:])


def _check_shares(shares: Sequence[Index], samples: int, clients: int) -> None:
    """Check what a partition returned, which may be the user's own."""
    if len(shares) != clients or min(map(len, shares), default=0) == 0:
        raise ValueError(f"The partition must give each of {clients} clients at least one sample.")
    positions = np.concatenate(shares)
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise ValueError(f"The partition must give whole numbers (n,), but gave {positions.dtype} {positions.shape}.")
    if positions.min() < 0 or positions.max() >= samples or np.bincount(positions).max() > 1:
        raise ValueError(f"The partition must give positions from 0 to {samples - 1}, none of them twice.")
