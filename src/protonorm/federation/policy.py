"""Cohort selection, evaluation schedule and quorum of rounds."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal

import numpy as np

from protonorm.core.randomness import SERVER, seeded
from protonorm.core.robust import Standing
from protonorm.core.systems import Plan, System, arrivals, waited
from protonorm.core.task import Reply

Check = Callable[[Reply], None]  # raises a ValueError for a reply that must not count
Watch = Callable[[int, Mapping[int, Standing]], None]  # receives a round and the standings of its contributions


@dataclass(frozen=True)
class Policy:
    """Cohort size, evaluation schedule and quorum of a run."""

    clients: int  # M
    cohort_size: int
    evaluate: Literal["all", "cohort"] = "all"
    evaluate_every: int = 1  # rounds; the last round is always evaluated
    evaluate_all_every: int | None = None  # rounds between evaluations of all clients; also after the last round
    quorum: float = 1.0  # share of the cohort that must reply
    retries: int = 2  # further attempts at a round that missed its quorum
    deadline: float | None = None  # seconds for training in a round
    parts: tuple[str, ...] = ("validation", "test")  # parts of the clients' samples that are counted
    solo: bool = False  # whether each client has a server of its own
    client_names: tuple[str, ...] | None = None  # M, for messages; None: clients have numbers only
    checks: tuple[Check, ...] = ()  # conditions on a reply in addition to the schema
    members: tuple[int, ...] | None = None  # clients that take part, in a federation that clients join and leave
    watch: Watch | None = None  # observer of the contributions, where the rule of combination compares them
    held_out: tuple[int, ...] = ()  # clients that never train; they are evaluated apart
    by_cell: bool = False  # whether right answers are recorded by client and class together
    system: System | None = None  # simulated speed and reliability of the clients
    last_round: int | None = None  # round of all clients after which the method is finished: it is evaluated

    def needed(self, cohort: int) -> int:
        """Return the number of replies that a round needs, given its cohort size."""
        return max(1, math.ceil(self.quorum * cohort - 1e-9))

    def plans(self, seed: int, done: int) -> Iterator[Plan]:
        """Plan the rounds of a simulated system after those that are done."""
        assert self.system is not None
        if self.system.asynchronous:
            planned = arrivals(self.system, seed, self.clients, self.cohort_size, self.held_out)
            yield from islice(planned, done, None)
        for round in count(done + 1):
            cohort = draw_cohort(seed, round, self.participants, self.cohort_size)
            yield waited(self.system, seed, round, self.clients, cohort, self.needed(len(cohort)))

    @property
    def participants(self) -> Sequence[int]:
        """Ids of the clients that take part."""
        if self.held_out:
            return sorted(set(range(self.clients)) - set(self.held_out))
        return range(self.clients) if self.members is None else self.members

    def label(self, id: int) -> str:
        """Return a client's name for messages."""
        return f"client {self.client_names[id] if self.client_names else id}"

    def evaluation_scope(self, round: int, rounds: int) -> Literal["all", "cohort", "nobody"]:
        """Return which clients are evaluated after a round."""
        every, last = self.evaluate_all_every, round == rounds
        last |= round == self.last_round and self.cohort_size == self.clients
        if every is not None and (round % every == 0 or last):
            return "all"
        return self.evaluate if round % self.evaluate_every == 0 or last else "nobody"


def draw_cohort(seed: int, round: int, clients: int | Sequence[int], size: int) -> list[int]:
    """Draw the clients of a round, of all or of the given ones, without replacement."""
    ids = range(clients) if isinstance(clients, int) else clients
    if size == len(ids):
        return list(ids)
    with seeded(seed, round, SERVER, "cohort"):
        return sorted(ids[position] for position in np.random.permutation(len(ids))[:size].tolist())


def draw_held_out(seed: int, clients: int, count: int) -> tuple[int, ...]:
    """Draw the clients that never train."""
    with seeded(seed, 0, SERVER, "cohort"):  # no round has the number 0
        return tuple(sorted(np.random.permutation(clients)[:count].tolist())) if count else ()
