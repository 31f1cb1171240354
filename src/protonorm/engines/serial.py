"""Clients in one process: the host that runs them, and the serial engine, the reference for all engines."""

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from protonorm.core.task import Counts, Lost, Messages, Order, Population, Reply, Site, Task, message_for
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors

Replies = Iterator[Reply | Lost]


class Deadline:
    """Time limit of a call, on the monotonic clock; infinite if `seconds` is None."""

    def __init__(self, seconds: float | None) -> None:
        self.end = math.inf if seconds is None else time.monotonic() + seconds
        self.reason = "" if seconds is None else f"it had not replied after {seconds:g} seconds"  # of a late client

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.end

    @property
    def left(self) -> float | None:
        """Remaining seconds, at least 0; None without a limit."""
        return None if math.isinf(self.end) else max(0.0, self.end - time.monotonic())

    def lost(self, orders: Iterable[Order]) -> dict[int, Any]:
        """Mark the clients of late orders as lost."""
        return {order.id: Lost(order.id, self.reason) for order in orders}


class Host:
    """Executor of clients in one process, which keeps their states between rounds."""

    def __init__(self, task: Task, population: Population, store: FolderStore) -> None:
        self._task, self._population, self._store = task, population, store
        self._orders: dict[int, Order] = {}  # by client: training order since the last commit
        self._acted: set[int] = set()  # clients that trained or were evaluated since then
        self._checked: Tensors | None = None  # the last message that passed the schema check

    def train(self, order: Order, message: Tensors) -> Reply:
        """Train a client from the state that its order names, and save the new state."""
        self._check(message)
        self._orders[order.id] = order
        site = self._population.site(order.id)
        before = self._state(site, order)
        with self._store.cache.copies(order.id) as copies:
            state, reply = train_step(self._task, site, order, before, message)
        self._store.save(order.id, order.round, state, copies)
        return reply

    def evaluate(self, order: Order, message: Tensors, parts: Sequence[str]) -> Counts:
        """Evaluate a client with the state that its order names."""
        self._check(message)
        site = self._population.site(order.id)
        state = self._state(site, order)
        with self._store.cache.copies(order.id) as copies:
            counts = evaluate_step(self._task, site, order, state, message, parts)
        copies.keep(state)
        return counts

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Remove states that the committed round replaced; clients without a reply keep their previous state.

        States of inactive clients are dropped from the cache: in large populations, few are in the next cohort.
        """
        for id, order in self._orders.items():
            self._store.keep_only(id, order.round if id in replied else order.trained, chosen)
        self._store.cache.keep(self._acted)
        self._orders.clear()
        self._acted.clear()

    def _state(self, site: Site, order: Order) -> Tensors:
        """Load the state that an order names; create the initial state of a client that has not trained yet."""
        self._acted.add(order.id)
        if order.trained:
            return self._store.load(order.id, order.trained)
        state = self._store.cache.get(order.id, 0)
        if state is None:
            state = first_state(self._task, site)
            self._store.cache.put(order.id, 0, state)
        return state

    def _check(self, message: Tensors) -> None:
        if message is not self._checked:
            self._task.schema.check_down(message)
            self._checked = message


class Serial:
    """Execution backend that runs clients sequentially in this process."""

    def __init__(self, task: Task, population: Population, store: FolderStore, workers: int | None = None) -> None:
        self._host = Host(task, population, store)
        self.commit = self._host.commit

    def train(self, orders: Sequence[Order], messages: Messages, deadline: float | None = None) -> Replies:
        """Train clients sequentially; clients that miss the deadline are lost."""
        limit = Deadline(deadline)
        for order in orders:
            reply = None if limit.passed else self._host.train(order, message_for(messages, order.id))
            yield Lost(order.id, limit.reason) if reply is None or limit.passed else reply

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Evaluate clients sequentially."""
        for order in orders:
            yield self._host.evaluate(order, message_for(messages, order.id), parts)

    def close(self) -> None:
        """Do nothing: there is no process to end."""
