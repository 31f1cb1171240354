"""Data whose samples have owners already: a client keeps what it has, and its own split if it has one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.data.dataset import Dataset
from protonorm.data.partitions.base import ClientIndex, Index, Partition, Parts, Seed, partition, split_share


@dataclass(frozen=True, config=STRICT)
class Given:
    """The partition that the record of a run names if its data say which client owns what."""

    seed: Seed = 1  # of the split of clients that have none of their own

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Refuse data without owners."""
        raise ValueError("partition=given needs data that clients own already, such as dataset=clients:PATH.")

    def description(self) -> dict[str, Any]:
        """Describe it, for an experiment's key."""
        return {"name": "given", "seed": self.seed}


def parts_of(data: Dataset, clients: int, how: Partition, train: float) -> Parts:
    """Find each client's part: what it owns already, or what the partition assigns to it."""
    if data.owner is None:
        return partition(data.labels, clients, how, train)
    order = np.argsort(data.owner, kind="stable")
    shares = np.split(order, np.bincount(data.owner).cumsum()[:-1])
    return Parts.of([own_part(share, data.split, train, [how.seed, id]) for id, share in enumerate(shares)])


def own_part(share: Index, split: NDArray[np.int8] | None, train: float, seed: list[int]) -> ClientIndex:
    """Split a client's samples as the data say, or at random if they do not say it of all of them."""
    if split is None or (split[share] < 0).any():
        return split_share(share, train, seed)
    mixed = np.random.default_rng(seed).permutation(share)
    return ClientIndex(mixed[split[mixed] == 0], mixed[split[mixed] > 0])
