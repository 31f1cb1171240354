"""Which actor a client is with: it stays there, unless the actor is lost or others would end a round sooner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from protonorm.engines.processes.balance import Costs, reassign


class Placement:
    """The actors of clients, by their numbers, and what clients cost."""

    def __init__(self, samples: Sequence[int], kinds: int) -> None:
        """Begin with the clients' numbers of samples (M,); client i has a network of kind i mod `kinds`."""
        self._costs = Costs(samples, kinds)
        self._where: dict[int, int] = {}
        self._seconds: dict[int, float] = {}  # of each client that was asked to train since the last commit

    def balance(self, clients: Iterable[int], actors: Sequence[int]) -> None:
        """Place those who are to train: where they are, the others where least is to be done, or all anew if sooner."""
        costs = {id: self._costs.of(id) for id in clients}
        self._seconds = dict.fromkeys(costs, 0.0)
        if not actors:
            return
        parts = {actor: [id for id in costs if self._where.get(id) == actor] for actor in actors}
        loads = {actor: sum(costs[id] for id in part) for actor, part in parts.items()}
        homeless = [id for id in costs if self._where.get(id) not in parts]
        for id in sorted(homeless, key=lambda id: (-costs[id], id)):
            actor = min(loads, key=lambda actor: (loads[actor], actor))
            parts[actor].append(id)
            loads[actor] += costs[id]
        for actor, part in zip(parts, reassign(list(parts.values()), costs), strict=True):
            self._where |= dict.fromkeys(part, actor)

    def actor_of(self, client: int, loads: Mapping[int, int]) -> int:
        """Find a client's actor among those of `loads`, which have so much to do; a lost one's client changes."""
        if self._where.get(client) not in loads:
            self._where[client] = min(loads, key=lambda actor: (loads[actor], actor))
        return self._where[client]

    def note(self, client: int, seconds: float) -> None:
        """Take note of the time that a client took for one verb of a round."""
        if client in self._seconds:
            self._seconds[client] += seconds

    def commit(self, replied: Collection[int]) -> None:
        """Judge by this round what its clients will cost in the next."""
        for id in replied:
            if seconds := self._seconds.get(id):
                self._costs.note(id, seconds)
        self._seconds = {}
