"""Assignment of clients to workers so that all finish at about the same time; it never changes results."""

from collections.abc import Collection, Iterable, Mapping, Sequence

MAX_RELATIVE_DURATION = 0.95  # maximum relative duration of a new assignment: a moved client reads its state from disk


class Costs:
    """Seconds per client: as last measured, or estimated from samples and network."""

    def __init__(self, samples: Sequence[int], kinds: int) -> None:
        """Initialise from the numbers of samples (M,); client i has a network of kind i mod `kinds`."""
        self._samples, self._kinds = samples, kinds
        self._measured: dict[int, float] = {}  # by client: seconds of its last round
        self._seconds, self._seen = [0.0] * kinds, [0] * kinds  # by kind: total seconds and samples

    def note(self, client: int, seconds: float) -> None:
        """Record the seconds of a client."""
        self._measured[client] = seconds
        self._seconds[client % self._kinds] += seconds
        self._seen[client % self._kinds] += self._samples[client]

    def of(self, client: int) -> float:
        """Estimate the seconds of a client; in units of samples before the first measurement."""
        if client in self._measured:
            return self._measured[client]
        kind = client % self._kinds
        seconds, samples = self._seconds[kind], self._seen[kind]
        if not samples:  # nothing is known of this kind of network
            seconds, samples = sum(self._seconds), sum(self._seen)
        return self._samples[client] * (seconds / samples if samples else 1.0)


def assign(costs: Mapping[int, float], parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Add the other clients to the workers' parts greedily: the most expensive first, to the least loaded worker."""
    clients = [list(part) for part in parts]
    loads = [sum(costs[client] for client in part) for part in parts]
    for client in sorted(costs.keys() - set().union(*parts), key=lambda client: (-costs[client], client)):
        worker = loads.index(min(loads))
        clients[worker].append(client)
        loads[worker] += costs[client]
    return clients


def reassign(clients: Sequence[list[int]], costs: Mapping[int, float]) -> list[list[int]]:
    """Return a new assignment if it is sufficiently faster under the given costs, else the current one."""
    proposal = assign(costs, [[]] * len(clients))
    after, before = (max(sum(costs[id] for id in part) for part in parts) for parts in (proposal, clients))
    return proposal if after < MAX_RELATIVE_DURATION * before else list(clients)


class Placement:
    """Assignment of clients to numbered workers or actors, based on measured costs."""

    def __init__(self, samples: Sequence[int], kinds: int) -> None:
        """Initialise from the numbers of samples (M,); client i has a network of kind i mod `kinds`."""
        self._costs = Costs(samples, kinds)
        self.where: dict[int, int] = {}  # by client: the number of its worker
        self._seconds: dict[int, float] = {}  # by client that was ordered to train since the last commit

    def balance(self, clients: Iterable[int], actors: Sequence[int]) -> None:
        """Assign the clients of a round: keep known ones, add others to the least loaded, or reassign all if faster."""
        costs = {id: self._costs.of(id) for id in clients}
        self._seconds = dict.fromkeys(costs, 0.0)
        parts: dict[int, list[int]] = {actor: [] for actor in sorted(actors)}
        for id in costs.keys() & self.where.keys():
            parts.get(self.where[id], []).append(id)
        if parts:
            for actor, part in zip(parts, reassign(assign(costs, list(parts.values())), costs), strict=True):
                self.where |= dict.fromkeys(part, actor)

    def actor_of(self, client: int, loads: Mapping[int, int]) -> int:
        """Return a client's actor; if it is not in `loads` (open orders by actor), assign the least loaded actor."""
        if self.where.get(client) not in loads:
            self.where[client] = min(loads, key=lambda actor: (loads[actor], actor))
        return self.where[client]

    def note(self, client: int, seconds: float) -> None:
        """Add the seconds of a client's request to its round."""
        if client in self._seconds:
            self._seconds[client] += seconds

    def commit(self, replied: Collection[int]) -> None:
        """Record the seconds of this round's replies, for later assignments."""
        for id in replied:
            if seconds := self._seconds.get(id):
                self._costs.note(id, seconds)
        self._seconds = {}
