"""Clients in persistent processes, one torch thread each; a client stays where it is unless the balance asks."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from protonorm.core.task import ByClient, Counts, Lost, Messages, Order, Reply, Task
from protonorm.engines.processes.balance import Costs, assign, reassign
from protonorm.engines.processes.handover import hand_over
from protonorm.engines.processes.pool import Heard, Pool
from protonorm.engines.processes.wire import raise_error
from protonorm.errors import Failed
from protonorm.federation.population import SimulatedPopulation
from protonorm.runs.states import CACHE, FolderStore
from protonorm.tensors import Tensors, prefixed

Answer = TypeVar("Answer")

AHEAD = 16  # orders that a worker gets at a time: answers that come out of turn wait in memory


class Processes:
    """Run clients side by side."""

    def __init__(
        self, task: Task, population: SimulatedPopulation, store: FolderStore, workers: int | None = None
    ) -> None:
        sizes: list[int] = population.parts.sizes().sum(1).tolist()
        count = min(workers or cores(), len(sizes))
        self._workers = [0] * len(sizes)  # of each client
        self._move(assign(dict(enumerate(map(float, sizes))), count))
        self._costs = Costs(sizes, len(population.networks))
        self._seconds: dict[int, float] = {}  # of each client that trained since the last commit
        self._calls = 0
        self._owed: dict[int, dict[int, Order]] = {}  # by worker: orders of this call that are not answered yet
        self._messages: list[Messages | None] = [None] * count  # what each worker was last told
        self.pool = Pool(count, partial(_tell, task, population, store, CACHE // count))

    def train(
        self, orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Let clients train; give replies in the order of the orders.

        Clients go to other workers if these would end sooner: states rest on the disk, and few stay in memory.
        """
        costs = {order.id: self._costs.of(order.id) for order in orders}
        self._seconds = dict.fromkeys(costs, 0.0)
        self._move(reassign(self._parts(costs), costs))
        return self._ask({"verb": "train"}, orders, messages, _reply, deadline)

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Let clients be evaluated; give counts in the order of the orders."""
        return self._ask({"verb": "evaluate", "parts": list(parts)}, orders, messages, _counts)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Tell the workers that a round is final, and take note of what its clients cost."""
        for number in range(len(self.pool)):
            self.pool.send(number, {"verb": "commit", "round": round, "replied": sorted(replied), "chosen": chosen})
        for id in replied:
            if seconds := self._seconds.get(id):
                self._costs.note(id, seconds)
        self._seconds = {}

    @property
    def assigned(self) -> list[list[int]]:
        """List the clients of each worker."""
        return self._parts(range(len(self._workers)))

    def fetch(self, id: int, trained: int) -> Tensors:
        """Give a client's state."""
        for found in self._ask({"verb": "fetch"}, [Order(id, trained, trained)], {}, lambda _, state: state):
            if isinstance(found, Lost):
                raise Failed(f"The state of client {id} is not to be had: {found.reason}.")
            return found
        raise AssertionError("one order has one answer")

    def close(self) -> None:
        """End the workers; idle ones finish what they were told."""
        self.pool.close(gently=not any(self._owed.values()))

    def _ask(
        self,
        header: dict[str, Any],
        orders: Sequence[Order],
        messages: Messages,
        make: Callable[[dict[str, Any], Tensors], Answer],
        deadline: float | None = None,
    ) -> Iterator[Answer | Lost]:
        """Send each worker its orders, and give the answers in the order of the orders."""
        self._calls += 1
        end = None if deadline is None else time.monotonic() + deadline
        header |= {"call": self._calls} | ({} if end is None else {"end": end})
        self._owed = {}
        early: dict[int, Answer | Lost] = {}
        size, sent = AHEAD * len(self.pool), 0
        for place, order in enumerate(orders):
            while sent < len(orders) and sent <= place + size:
                some = orders[sent : sent + size]
                late = end is not None and time.monotonic() >= end
                early |= self._lose_late(some, deadline) if late else self._send(header, some, messages)
                sent += len(some)
            while order.id not in early:
                early |= self._hear(make, end, deadline)
            yield early.pop(order.id)

    def _send(self, header: dict[str, Any], orders: Sequence[Order], messages: Messages) -> dict[int, Lost]:
        """Send orders to the workers that have their clients; nobody is lost by that."""
        shares: dict[int, dict[int, Order]] = {}
        for order in orders:
            shares.setdefault(self._workers[order.id], {})[order.id] = order
        for number, own in shares.items():
            self._owed.setdefault(number, {}).update(own)
            self._tell_message(number, own.values(), messages)
            self.pool.send(number, header | {"orders": list(own.values())})
        return {}

    def _hear(
        self, make: Callable[[dict[str, Any], Tensors], Answer], end: float | None, deadline: float | None
    ) -> dict[int, Answer | Lost]:
        """Wait for the next answer to this call; who is late, or lived in a worker that is gone, is lost."""
        try:
            heard = self.pool.hear(None if end is None else max(0.0, end - time.monotonic()))
        except queue.Empty:
            late = [order for own in self._owed.values() for order in own.values()]
            self._owed = {}
            return self._lose_late(late, deadline)
        if heard.gone or "gone" in heard.header:
            return self._lose(heard.number, heard.gone)
        if heard.header.get("call") != self._calls:
            return {}  # the answer to a call that nobody waits for any more
        return self._take(heard, make)

    def _take(self, heard: Heard, make: Callable[[dict[str, Any], Tensors], Answer]) -> dict[int, Answer | Lost]:
        """Take an answer in; one that nobody asked for means that the worker is out of its mind."""
        header, id = heard.header, heard.header.get("id")
        if type(id) is not int or id not in self._owed.get(heard.number, {}):
            return self._lose(heard.number, f"answered for client {id}, which it was not asked about")
        if "error" in header:
            del self._owed[heard.number][id]
            raise_error(header)
        try:
            answer, seconds = make(header, heard.tensors), float(header["seconds"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return self._lose(heard.number, "sent an answer that lacks something")
        del self._owed[heard.number][id]
        if id in self._seconds:
            self._seconds[id] += seconds
        return {id: answer}

    def _lose_late(self, orders: Sequence[Order], deadline: float | None) -> dict[int, Any]:
        return {order.id: Lost(order.id, f"it had not replied after {deadline:g} seconds") for order in orders}

    def _lose(self, number: int, reason: str) -> dict[int, Answer | Lost]:
        """Replace a worker; all that it still owed is lost."""
        owed = self._owed.pop(number, {})
        self._messages[number] = None
        told = self.pool.replace(number, reason)
        return {id: Lost(id, told) for id in owed}

    def _parts(self, clients: Iterable[int]) -> list[list[int]]:
        """Say which of some clients are with each worker."""
        parts: list[list[int]] = [[] for _ in self._messages]
        for id in clients:
            parts[self._workers[id]].append(id)
        return parts

    def _move(self, parts: Sequence[Sequence[int]]) -> None:
        """Let clients act at these workers from now on."""
        for number, part in enumerate(parts):
            for id in part:
                self._workers[id] = number

    def _tell_message(self, number: int, orders: Collection[Order], messages: Messages) -> None:
        """Tell a worker what the server said, unless it was told before."""
        if self._messages[number] is messages:
            return
        if isinstance(messages, ByClient):
            packed: Tensors = {}
            for order in orders:
                packed |= prefixed(str(order.id), messages[order.id])
            self.pool.send(number, {"verb": "message", "ids": [order.id for order in orders]}, packed)
            self._messages[number] = None  # only these clients' messages went there
        else:
            self.pool.send(number, {"verb": "message"}, messages)
            self._messages[number] = messages


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tell(task: Task, population: SimulatedPopulation, store: FolderStore, cache: int, folder: Path) -> dict[str, Any]:
    """Tell a worker of the simulation, where states rest, and how many bytes of them it may keep in memory."""
    told = hand_over(task, population, folder)
    return told | {"states": str(store.folder.resolve()), "key": store.key, "cache": cache}


def _reply(header: dict[str, Any], tensors: Tensors) -> Reply:
    metrics = {str(name): float(value) for name, value in header["metrics"].items()}
    return Reply(header["id"], tensors, metrics, float(header["seconds"]))


def _counts(header: dict[str, Any], tensors: Tensors) -> Counts:
    return Counts(header["id"], tensors)
