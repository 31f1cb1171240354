"""Divide each class among the clients in Dirichlet shares, number for number as the paper's public code does.

The smaller α, the fewer clients share a class. With seed 1 and α = 0.1 this gives the authors' CIFAR-10 partition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, Positive
from protonorm.data.partitions.base import Index, Seed, assign_counts, default_least, group_by_class, require_enough

Shares = NDArray[np.float64]  # (M,), of a class


@dataclass(frozen=True, config=STRICT)
class Dirichlet:
    """Shares of each class drawn from Dir(α·1_M), until every client has enough samples."""

    alpha: Positive = 0.1  # α
    least: Count | None = None  # samples of a client at least; None takes 40, or half an equal share if that is less
    retries: Count = 1000  # draws of the whole partition before giving up
    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Give each client its samples, sorted."""
        require_enough(labels, clients)
        least = self.least or default_least(len(labels), clients)
        require_enough(labels, clients, least)
        random = np.random.RandomState(self.seed)  # the legacy generator: new ones draw other numbers
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
        """Shuffle each class in place, draw its shares and count what each client gets of it, (K, M)."""
        equal = sum(map(len, members)) / clients  # N/M: a client that has as much gets no further class
        counts = np.zeros((len(members), clients), np.int64)
        held = np.zeros(clients, np.int64)
        for row, group in zip(counts, members, strict=True):
            random.shuffle(group)
            shares = _shares(random.dirichlet(np.full(clients, self.alpha)), held < equal, random)
            cuts = (np.cumsum(shares) * len(group)).astype(np.int64)[:-1]
            row[:] = np.diff(cuts, prepend=0, append=len(group))  # what rounding leaves goes to the last client
            held += row
        return counts


def _shares(drawn: Shares, hungry: NDArray[np.bool_], random: np.random.RandomState) -> Shares:
    """Spread the shares (M,) over the clients that still take samples."""
    shares: Shares = np.where(hungry, drawn, 0.0)
    total = float(shares.sum())
    if 0 < total < np.inf:
        return shares / total
    # A tiny α underflows. Its limit gives the whole class to one client, each with the same chance.
    whole = np.zeros(len(hungry))
    whole[random.choice(np.flatnonzero(hungry))] = 1.0
    return whole
