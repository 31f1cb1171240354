"""Who does what in a federation: sites have data and networks, engines know where clients live, stores keep states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protonorm.core.node import Client
from protonorm.core.task import Counts, Lost, Messages, Order, Reply
from protonorm.tensors import Tensors


class Site(Protocol):
    """What one owner has: its samples, its network, its own learning rate, batch size and device."""

    @property
    def id(self) -> int:
        """The client's number."""

    def client(self, round: int) -> Client:
        """Give what the client has in a round; the weights in its models are those last loaded."""

    def fresh_client(self) -> Client:
        """Give the client with newly initialised networks of its own."""


@dataclass(frozen=True)
class PopulationFacts:
    """What a simulation knows about all its clients."""

    train: NDArray[np.int64]  # (M, K) training samples of each client and class
    validation: NDArray[np.int64]  # (M, K) validation samples, which are none of these
    test: NDArray[np.int64]  # (M, K) test samples
    networks: tuple[str, ...]  # names; client i has number i mod n


class Population(Protocol):
    """A simulation's sites, made when they are asked for; a real server has none."""

    def __len__(self) -> int:
        """Count the clients, M."""

    def site(self, id: int) -> Site:
        """Make the site of a client."""

    def facts(self) -> PopulationFacts:
        """Say who holds what."""


class Engine(Protocol):
    """Where clients live."""

    def train(
        self, orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Let clients train; answers come in the order of the orders.

        A client that has not answered `deadline` seconds after the call is lost.
        """

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Let clients count their right answers over parts of their samples; answers come in the order of the orders.

        After a client trained, `trained` of its order is the round it trained in.
        """

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Take note that a round is final and whose replies it has; nodes drop what nobody can need any more.

        `chosen` is the best round so far: what clients remembered after it is kept beside their last states.
        """

    def fetch(self, id: int, trained: int) -> Tensors:
        """Give a client's state, for whoever may have it."""

    def close(self) -> None:
        """End what the engine started."""


class StateStore(Protocol):
    """Where states rest: a folder with a bounded cache; on a cluster and in a federation the node's own."""

    def load(self, id: int, round: int) -> Tensors:
        """Read a client's state after a round."""

    def save(self, id: int, round: int, state: Tensors) -> None:
        """Keep a client's state after a round, beside the one before."""

    def keep_only(self, id: int, round: int, chosen: int = 0) -> None:
        """Drop the states of a client but the one after a round, and the newest that is not after the chosen round."""
