"""Data that are dealt out already: a client keeps what it has, and its own split if it has one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from protonorm.data.dataset import Dataset
from protonorm.data.partition import Index, Part, Partition, Seed, partition, two_parts
from protonorm.settings import STRICT


@dataclass(frozen=True, config=STRICT)
class Given:
    """What stands in the record of a run whose data say who has what."""

    seed: Seed = 1  # of the split of clients that have none of their own

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Refuse data that do not say who has what."""
        raise ValueError("partition=given needs data that are dealt out already, such as dataset=clients:PATH.")

    def description(self) -> dict[str, Any]:
        """Name it."""
        return {"name": "given", "seed": self.seed}


def parts_of(data: Dataset, clients: int, how: Partition, train: float) -> list[Part]:
    """Find each client's part: as the data say, or as the partition deals them out."""
    if data.owner is None:
        return partition(data.labels, clients, how, train)
    order = np.argsort(data.owner, kind="stable")
    shares = np.split(order, np.bincount(data.owner).cumsum()[:-1])
    return [_own_parts(share, data.split, train, [how.seed, id]) for id, share in enumerate(shares)]


def _own_parts(share: Index, split: NDArray[np.int8] | None, train: float, seed: list[int]) -> Part:
    if split is None or (split[share] < 0).any():
        return two_parts(share, train, seed)
    mixed = np.random.default_rng(seed).permutation(share)
    return Part(mixed[split[mixed] == 0], mixed[split[mixed] > 0])
