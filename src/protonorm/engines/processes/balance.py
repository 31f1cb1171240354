"""Assign clients to workers so that all finish at about the same time. It never changes results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WORTHWHILE = 0.95  # a new assignment must end this much sooner: a client that moves reads its state from the disk


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
