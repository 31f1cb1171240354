"""Deal the samples of a data set out to clients, and split each client's share into a training and a test part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from protonorm.settings import STRICT

Index = NDArray[np.int64]  # positions in the data set
Seed = Annotated[int, Ge(0), Lt(2**32)]


class Part(NamedTuple):
    """Where a client's samples are in the data set, in a random order that never changes."""

    train: Index
    test: Index


class Partition(Protocol):
    """A way to deal samples out."""

    @property
    def seed(self) -> int:
        """Decide all that is random in it."""

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Give each client its samples, as sorted positions in `labels` (N,)."""


@dataclass(frozen=True, config=STRICT)
class IID:
    """Every client the same number of samples, drawn from all without regard to their class."""

    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Give each client its samples, sorted."""
        require_enough(labels, clients)
        order = np.random.default_rng(self.seed).permutation(len(labels))
        return [np.sort(share) for share in np.array_split(order, clients)]


def partition(labels: NDArray[np.int64], clients: int, how: Partition, train: float = 0.75) -> list[Part]:
    """Deal the samples out and split each client's share at random, without regard to classes.

    A client of n samples trains on ⌊train·n⌋ of them, at least one, and tests on the others, at least one if n > 1.
    """
    if not 0 < train < 1:
        raise ValueError(f"train={train} is refused: expected a share between 0 and 1, such as 0.75.")
    shares = how.assign(labels, clients)
    _require_sound(shares, len(labels), clients)
    return [two_parts(share, train, [how.seed, client]) for client, share in enumerate(shares)]


def class_counts(labels: NDArray[np.int64], parts: Sequence[Index], num_classes: int) -> NDArray[np.int64]:
    """Count the samples of each class in each part, (M, K)."""
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])  # (N,)
    cell = owner * num_classes + labels[np.concatenate(parts)]
    return np.bincount(cell, minlength=len(parts) * num_classes).reshape(len(parts), num_classes)


def by_class(labels: NDArray[np.int64]) -> list[Index]:
    """Sort the samples into the classes that occur, in the order of the classes, then of the data set."""
    _, counts = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1])


def hand_out(members: Sequence[Index], counts: NDArray[np.int64]) -> list[Index]:
    """Cut the members of each class into counts (K, M), one column for each client; sort what a client gets."""
    classes, clients = counts.shape
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())  # (N,)
    samples = np.concatenate(members)
    order = np.lexsort((samples, owner))
    return np.split(samples[order], counts.sum(0).cumsum()[:-1])


def usual_least(samples: int, clients: int) -> int:
    """Say how many samples a client gets at least if nobody says otherwise: 40, or half an equal share."""
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


def two_parts(share: Index, train: float, seed: list[int]) -> Part:
    """Split a client's share at random, without regard to classes."""
    mixed = np.random.default_rng(seed).permutation(share)
    cut = min(max(int(train * len(share)), 1), max(len(share) - 1, 1))
    return Part(mixed[:cut], mixed[cut:])


def _require_sound(shares: Sequence[Index], samples: int, clients: int) -> None:
    """Refuse what a partition of the user's own must not return."""
    if len(shares) != clients or min(map(len, shares), default=0) == 0:
        raise ValueError(f"The partition must give each of {clients} clients at least one sample.")
    positions = np.concatenate(shares)
    if positions.min() < 0 or positions.max() >= samples or np.bincount(positions).max() > 1:
        raise ValueError(f"The partition must give positions from 0 to {samples - 1}, none of them twice.")
