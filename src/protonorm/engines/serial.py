"""All clients in this process, one after the other: the reference that every other engine equals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from protonorm.core import Reply
from protonorm.engines.host import Host
from protonorm.record import States
from protonorm.setup import Setup
from protonorm.tensors import Tensors


class Serial:
    """Run clients one by one."""

    def __init__(self, setup: Setup, states: States, workers: int | None = None) -> None:
        self._host = Host(setup, states)

    def run_clients(
        self, round: int, cohort: Collection[int], message: Tensors, trained: Sequence[int]
    ) -> Iterator[Reply]:
        """Let the cohort train and everybody be tested."""
        for id, last in enumerate(trained):
            yield self._host.step(id, round, message, train=id in cohort, trained=last)

    def close(self) -> None:
        """Do nothing: there is no process to end."""
