"""Deal clients out to workers so that all finish at about the same time. It never changes results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WORTHWHILE = 0.95  # a new deal must end this much sooner: a client that moves reads its state from the disk


def deal(costs: Mapping[int, float], workers: int) -> list[list[int]]:
    """Give the longest remaining client to the least loaded worker."""
    hands: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for client in sorted(costs, key=lambda client: (-costs[client], client)):
        worker = loads.index(min(loads))
        hands[worker].append(client)
        loads[worker] += costs[client]
    return hands


def redeal(hands: Sequence[list[int]], costs: Mapping[int, float]) -> list[list[int]]:
    """Deal anew with what clients turned out to cost, if that is worth the moving."""
    fresh = deal(costs, len(hands))
    return fresh if _end(fresh, costs) < WORTHWHILE * _end(hands, costs) else list(hands)


def _end(hands: Sequence[list[int]], costs: Mapping[int, float]) -> float:
    return max(sum(costs[client] for client in hand) for hand in hands)
