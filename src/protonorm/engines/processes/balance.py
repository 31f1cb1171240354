"""Assign clients to workers so that all finish at about the same time. It never changes results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WORTHWHILE = 0.95  # a new assignment must end this much sooner: a client that moves reads its state from the disk


class Costs:
    """What it costs to let clients act: as measured when they last did, or judged by their samples and networks."""

    def __init__(self, samples: Sequence[int], kinds: int) -> None:
        """Begin with the clients' numbers of samples (M,); client i has a network of kind i mod `kinds`."""
        self._samples, self._kinds = samples, kinds
        self._measured: dict[int, float] = {}  # seconds of clients when they last acted
        self._seconds, self._seen = [0.0] * kinds, [0] * kinds  # of each kind: all that was measured, and its samples

    def note(self, client: int, seconds: float) -> None:
        """Take note of what a client has cost."""
        self._measured[client] = seconds
        self._seconds[client % self._kinds] += seconds
        self._seen[client % self._kinds] += self._samples[client]

    def of(self, client: int) -> float:
        """Judge what a client will cost; in samples as long as nothing was measured."""
        if (measured := self._measured.get(client)) is not None:
            return measured
        kind = client % self._kinds
        seconds, seen = (self._seconds[kind], self._seen[kind]) if self._seen[kind] else self._overall()
        return self._samples[client] * (seconds / seen if seen else 1.0)

    def _overall(self) -> tuple[float, int]:
        return sum(self._seconds), sum(self._seen)


def assign(costs: Mapping[int, float], workers: int) -> list[list[int]]:
    """Give the longest remaining client to the least loaded worker."""
    clients: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for client in sorted(costs, key=lambda client: (-costs[client], client)):
        worker = loads.index(min(loads))
        clients[worker].append(client)
        loads[worker] += costs[client]
    return clients


def reassign(clients: Sequence[list[int]], costs: Mapping[int, float]) -> list[list[int]]:
    """Assign anew with what clients turned out to cost, if that is worth the moving."""
    fresh = assign(costs, len(clients))
    return fresh if _end(fresh, costs) < WORTHWHILE * _end(clients, costs) else list(clients)


def _end(clients: Sequence[list[int]], costs: Mapping[int, float]) -> float:
    return max(sum(costs[client] for client in part) for part in clients)
