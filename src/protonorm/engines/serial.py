"""All clients in this process, one after the other: the reference that every other engine equals."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from protonorm.core.protocols import Population
from protonorm.core.task import Counts, Lost, Messages, Order, Reply, Task, message_for
from protonorm.engines.host import Host
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors


class Serial:
    """Run clients one by one."""

    def __init__(self, task: Task, population: Population, store: FolderStore, workers: int | None = None) -> None:
        self._host = Host(task, population, store)

    def train(
        self, orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Let clients train one after the other; those that are not done at the deadline are lost."""
        end = None if deadline is None else time.monotonic() + deadline
        for order in orders:
            late = Lost(order.id, f"it had not replied after {deadline:g} seconds") if end is not None else None
            if late and end is not None and time.monotonic() >= end:
                yield late
                continue
            reply = self._host.train(order, message_for(messages, order.id))
            yield late if late and end is not None and time.monotonic() > end else reply

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Let clients be evaluated one after the other."""
        for order in orders:
            yield self._host.evaluate(order, message_for(messages, order.id), parts)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Drop the states that the committed round has replaced."""
        self._host.commit(round, replied, chosen)

    def fetch(self, id: int, trained: int) -> Tensors:
        """Give a client's state."""
        return self._host.fetch(id, trained)

    def close(self) -> None:
        """Do nothing: there is no process to end."""
