"""Some clients in one process: their sites, and where their states rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protonorm.core.protocols import Population, Site
from protonorm.core.task import Counts, Order, Reply, Task
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors


class Host:
    """Let clients act, and keep what they remember between rounds."""

    def __init__(self, task: Task, population: Population, store: FolderStore) -> None:
        self._task, self._population, self._store = task, population, store
        self._asked: dict[int, Order] = {}  # who was asked to train since the last commit
        self._acted: set[int] = set()  # who trained or was evaluated since then
        self._checked: Tensors | None = None  # the last message that was found to be allowed

    def train(self, order: Order, message: Tensors) -> Reply:
        """Let a client train from the state that its order names, and keep the new one beside it."""
        self._check(message)
        self._asked[order.id] = order
        site = self._population.site(order.id)
        state, reply = train_step(self._task, site, order, self._state(site, order), message)
        self._store.save(order.id, order.round, state)
        return reply

    def evaluate(self, order: Order, message: Tensors, parts: Sequence[str]) -> Counts:
        """Let a client be evaluated with the state that its order names."""
        self._check(message)
        site = self._population.site(order.id)
        return evaluate_step(self._task, site, order, self._state(site, order), message, parts)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Drop what the committed round has replaced; of clients that did not reply the state before stays valid.

        States of clients that did not act leave the memory: of many clients few come back in the next round.
        """
        for id, order in self._asked.items():
            self._store.keep_only(id, order.round if id in replied else order.trained, chosen)
        self._store.cache.keep(self._acted)
        self._asked.clear()
        self._acted.clear()

    def fetch(self, id: int, trained: int) -> Tensors:
        """Give a client's state after the round it last trained in."""
        return self._state(self._population.site(id), Order(id, trained, trained))

    def _state(self, site: Site, order: Order) -> Tensors:
        """Find the state that an order names; a client that has not trained yet begins."""
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
