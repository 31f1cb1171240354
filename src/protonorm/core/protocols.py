"""Interfaces of a federation: sites have data and networks, engines run clients."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protonorm.core.node import Client
from protonorm.core.task import Counts, Lost, Messages, Order, Reply


class Site(Protocol):
    """Source of a client: its samples, network, learning rate, batch size and device."""

    @property
    def id(self) -> int:
        """Id of the client."""

    def client(self, round: int) -> Client:
        """Return the client in a round; its models have the weights that were loaded last."""

    def fresh_client(self) -> Client:
        """Return the client with newly initialised networks."""


@dataclass(frozen=True)
class PopulationFacts:
    """Sample counts and networks of all clients of a simulation."""

    train: NDArray[np.int64]  # (M, K) number of training samples of each client and class
    validation: NDArray[np.int64]  # (M, K) number of validation samples, which are not among the training samples
    test: NDArray[np.int64]  # (M, K) number of test samples
    networks: tuple[str, ...]  # names; client i has network i mod n


class Population(Protocol):
    """Sites of a simulation, created on demand; a deployed server has no population."""

    def __len__(self) -> int:
        """Return the number of clients, M."""

    def site(self, id: int) -> Site:
        """Create the site of a client."""

    def facts(self) -> PopulationFacts:
        """Return the sample counts and networks of all clients."""


class Engine(Protocol):
    """Execution backend, which runs clients."""

    def train(
        self, orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Train clients and yield their replies in the order of `orders`.

        A client without a reply `deadline` seconds after the call is lost.
        """

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Evaluate clients on parts of their samples and yield their counts in the order of `orders`.

        After a client trained, `trained` of its order is the round it trained in.
        """

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Mark a round and the clients that replied in it as final; nodes delete states that are no longer needed.

        `chosen` is the best round so far: the clients' states after it are kept in addition to their last states.
        """

    def close(self) -> None:
        """Release the resources of the engine."""


@runtime_checkable
class DeferredEngine(Engine, Protocol):
    """Engine whose clients evaluate a round when they train in the next, which saves a request per round.

    It asks every client in every round and returns once a quorum has replied. Client owners may decline evaluation.
    """

    def evaluate_and_train(
        self, orders: Sequence[Order], messages: Messages, parts: Sequence[str], deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Evaluate the previous round, train, and yield replies with the counts in the order of `orders`."""
