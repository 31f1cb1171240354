"""Give each client a few classes only, and unequal numbers of their samples."""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.data.partitions.base import Index, Seed, assign_counts, default_least, group_by_class, require_enough


@dataclass(frozen=True, config=STRICT)
class Pathological:
    """Blocks of clients that share a block of classes.

    A class goes to ⌈M·c/K⌉ clients, c = `classes_per_client`: the first ones that have fewer than c classes. So clients
    0, 1, … share classes 0 … c − 1, the next clients the next c classes, and so on.
    """

    classes_per_client: Count = 2
    seed: Seed = 1

    def assign(self, labels: NDArray[np.int64], clients: int) -> list[Index]:
        """Give each client its samples, sorted."""
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
        """Find the clients first ≤ i < last that share each class; refuse if some class has none."""
        each = self.classes_per_client
        if each > classes:
            raise ValueError(f"classes_per_client={each} is refused: the data set has only {classes} classes.")
        width = _block_size(classes, clients, each)
        served = _served(classes, clients, each)
        if served < classes:
            fitting = next(c for c in range(each, classes + 1) if _served(classes, clients, c) >= classes)
            larger = next(m for m in count(clients) if _served(classes, m, each) >= classes)  # a multiple of K at last
            raise ValueError(
                f"{clients} clients with classes_per_client={each} leave {classes - served} of {classes} classes to "
                f"nobody, and their samples would be lost. Use classes_per_client={fitting} or clients={larger}."
            )
        starts = [k // each * width for k in range(classes)]
        return [(start, min(start + width, clients)) for start in starts]


def _block_size(classes: int, clients: int, each: int) -> int:
    """Count the clients that share a class, ⌈M·c/K⌉."""
    return -(-clients * each // classes)


def _served(classes: int, clients: int, each: int) -> int:
    """Count the classes that have clients: c for every block of clients."""
    return -(-clients // _block_size(classes, clients, each)) * each


def _sizes(samples: int, clients: int, least: float, random: np.random.RandomState) -> NDArray[np.int64]:
    """Cut a class into unequal pieces: all but the last from a tenth of an equal share to the whole of it."""
    if samples < clients:
        raise ValueError(f"A class of {samples} samples is too small for the {clients} clients that share it.")
    equal = samples / clients
    high = int(equal)
    low = min(max(int(max(equal / 10, least)), 1), high)
    drawn = random.randint(low, max(high, low + 1), clients - 1)
    return np.append(drawn, samples - drawn.sum())
