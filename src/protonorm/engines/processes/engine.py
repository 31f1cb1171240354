"""Clients in persistent processes, one torch thread each; a client stays where it is unless the balance asks."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from protonorm.core.task import ByClient, Counts, Lost, Messages, Order, Reply, Task
from protonorm.engines.processes.balance import assign, reassign
from protonorm.engines.processes.handover import hand_over
from protonorm.engines.processes.pool import Heard, Pool
from protonorm.engines.processes.wire import raise_error
from protonorm.errors import Failed
from protonorm.federation.population import SimulatedPopulation
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, prefixed

Answer = TypeVar("Answer")


class Processes:
    """Run clients side by side."""

    def __init__(
        self, task: Task, population: SimulatedPopulation, store: FolderStore, workers: int | None = None
    ) -> None:
        sizes = {id: float(size) for id, size in enumerate(population.parts.sizes().sum(1).tolist())}
        count = min(workers or cores(), len(sizes))
        self.assigned = assign(sizes, count)  # the clients of each worker
        self._costs: dict[int, float] = {}  # seconds of each client since the last commit
        self._calls = 0
        self._owed: dict[int, dict[int, Order]] = {}  # by worker: orders of this call that are not answered yet
        self._messages: list[Messages | None] = [None] * count  # what each worker was last told
        self.pool = Pool(count, partial(_tell, task, population, store))

    def train(
        self, orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Let clients train; give replies in the order of the orders."""
        return self._ask({"verb": "train"}, orders, messages, _reply, deadline)

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Let clients be evaluated; give counts in the order of the orders."""
        return self._ask({"verb": "evaluate", "parts": list(parts)}, orders, messages, _counts)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Tell the workers that a round is final, and balance their clients by what they cost."""
        for number in range(len(self.pool)):
            self.pool.send(number, {"verb": "commit", "round": round, "replied": sorted(replied), "chosen": chosen})
        if self._costs.keys() == {id for part in self.assigned for id in part}:
            self.assigned = reassign(self.assigned, self._costs)
        self._costs = {}

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
        header, end = header | {"call": self._calls}, None if deadline is None else time.monotonic() + deadline
        self._owed = self._share_out(orders)
        for number, own in self._owed.items():
            self._tell_message(number, own.values(), messages)
            self.pool.send(number, header | {"orders": list(own.values())})
        early: dict[int, Answer | Lost] = {}
        for order in orders:
            while order.id not in early:
                early |= self._hear(make, end, deadline)
            yield early.pop(order.id)

    def _hear(
        self, make: Callable[[dict[str, Any], Tensors], Answer], end: float | None, deadline: float | None
    ) -> dict[int, Answer | Lost]:
        """Wait for the next answer to this call; who is late, or lived in a worker that is gone, is lost."""
        try:
            heard = self.pool.hear(None if end is None else max(0.0, end - time.monotonic()))
        except queue.Empty:
            late = [id for own in self._owed.values() for id in own]
            self._owed = {}
            return {id: Lost(id, f"it had not replied after {deadline:g} seconds") for id in late}
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
        self._costs[id] = self._costs.get(id, 0.0) + seconds
        return {id: answer}

    def _lose(self, number: int, reason: str) -> dict[int, Answer | Lost]:
        """Replace a worker; all that it still owed is lost."""
        owed = self._owed.pop(number, {})
        self._messages[number] = None
        told = self.pool.replace(number, reason)
        return {id: Lost(id, told) for id in owed}

    def _share_out(self, orders: Sequence[Order]) -> dict[int, dict[int, Order]]:
        """Give each order to the worker that has the client."""
        wanted = {order.id: order for order in orders}
        parts = ({id: wanted[id] for id in part if id in wanted} for part in self.assigned)
        return {number: own for number, own in enumerate(parts) if own}

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


def _tell(task: Task, population: SimulatedPopulation, store: FolderStore, folder: Path) -> dict[str, Any]:
    """Tell a worker of the simulation, and where states rest."""
    return hand_over(task, population, folder) | {"states": str(store.folder.resolve()), "key": store.key}


def _reply(header: dict[str, Any], tensors: Tensors) -> Reply:
    metrics = {str(name): float(value) for name, value in header["metrics"].items()}
    return Reply(header["id"], tensors, metrics, float(header["seconds"]))


def _counts(header: dict[str, Any], tensors: Tensors) -> Counts:
    return Counts(header["id"], tensors)
