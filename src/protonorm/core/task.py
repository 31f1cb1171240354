"""The task that all parties agree on, and the interfaces of sites and engines with the values that these exchange."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protonorm.core.algorithm import Additive, Algorithm, checked_schema
from protonorm.core.model import NetworkRecipe, SplitModel, Trunk
from protonorm.core.node import Client, Server
from protonorm.core.randomness import SERVER, seeded
from protonorm.core.robust import MEAN, MOST_MEMBERS, fold_of, least_members
from protonorm.core.schema import Schema
from protonorm.core.types import InputSpec
from protonorm.tensors import Tensors

if TYPE_CHECKING:
    from protonorm.core.secure_sum import Layout


@dataclass(frozen=True)
class Task:
    """Agreement between all parties, independent of data; passed to `Algorithm.schema`."""

    algorithm: Algorithm  # the method and its hyper-parameters
    classes: tuple[str, ...]  # K names
    feature_dim: int  # d
    rounds: int  # R
    seed: int  # of all random streams of the run
    input: InputSpec | None = None  # shape and type of a sample
    shared_network: NetworkRecipe | None = None  # network of all clients, or the shared second network
    head_bias: bool = True  # whether the clients' heads have a bias; only used if a head is shared
    server_lr: float = 0.01  # learning rate of server-side training
    server_batch_size: int = 32  # batch size of server-side training
    combine: str = MEAN  # rule of `core.robust` by which the server combines the clients' contributions
    trunks: tuple[Trunk, ...] = ()  # different frozen trunks of the clients' own networks; empty if there are none
    noise_length: float | None = (
        None  # C, to which noisy sums are scaled if the members of a secure sum share the noise
    )

    @property
    def num_classes(self) -> int:
        """Number of classes, K."""
        return len(self.classes)

    def server(self, round: int) -> Server:
        """Return the server in a round; in round 0 it has newly initialised networks."""
        network = self.shared_network() if self.shared_network and not round else None
        return Server(
            round=round,
            rounds=self.rounds,
            num_classes=self.num_classes,
            feature_dim=self.feature_dim,
            model=None if self.algorithm.auxiliary else network,
            auxiliary=network if self.algorithm.auxiliary else None,
            head_bias=self.head_bias,
            lr=self.server_lr,
            batch_size=self.server_batch_size,
            combine=fold_of(self.combine),
            trunks=self.known_trunks,
        )

    @property
    def combines(self) -> bool:
        """Whether the server combines the clients' messages."""
        return isinstance(self.algorithm, Additive) and self.algorithm.combines and bool(self.schema.up)

    @cached_property
    def least_members(self) -> int:
        """Smallest number of members of a secure sum; 0 if messages are not masked."""
        return least_members(self.combine)

    @property
    def secure(self) -> bool:
        """Whether the server receives masked messages, and sees their sum alone."""
        return self.least_members > 0

    @cached_property
    def layout(self) -> "Layout":
        """Order of the numbers of a masked message."""
        from protonorm.core.secure_sum import layout_of

        return layout_of(self)

    @cached_property
    def received_schema(self) -> Schema:
        """Schema of the messages of both sides as the server has them."""
        from protonorm.core.secure_sum import masked_schema

        return masked_schema(self) if self.secure else self.schema

    def check_members(self, members: int) -> None:
        """Raise ValueError for too few or too many members of a secure sum."""
        if self.secure and not self.least_members <= members <= MOST_MEMBERS:
            raise ValueError(
                f"combine={self.combine} must have {self.least_members} to {MOST_MEMBERS} clients in a round, got "
                f"{members}."
            )

    def check_combine(self) -> None:
        """Raise ValueError if the method does not combine its clients' messages, and the rule is another than mean."""
        if self.combine != MEAN and not self.combines:
            name = type(self.algorithm).__name__
            reason = "trains on the messages one by one" if self.schema.up else "receives no messages to combine"
            raise ValueError(f"combine must be {MEAN} for {name}, whose server {reason}, got {self.combine}.")
        if self.secure:
            _ = self.layout

    @cached_property
    def template(self) -> SplitModel:
        """Instance of the shared network, for its parameter names and shapes."""
        if self.shared_network is None:
            raise ValueError(f"{type(self.algorithm).__name__} needs a network that all clients share; there is none.")
        with seeded(self.seed, 0, SERVER, "template"):
            return self.shared_network()

    @property
    def known_trunks(self) -> tuple[Trunk, ...]:
        """Different frozen trunks of the clients' own networks, and of the network that all share."""
        shared = self.template.trunk if self.shared_network else None
        digests = {trunk.digest for trunk in self.trunks}
        return self.trunks if shared is None or shared.digest in digests else (*self.trunks, shared)

    @cached_property
    def schema(self) -> Schema:
        """Schema of the messages of both sides."""
        return checked_schema(self.algorithm, self.algorithm.schema(self))

    def describe(self) -> dict[str, Any]:
        """Return a JSON-compatible description of the task."""
        algorithm = self.algorithm
        settings: dict[str, Any] = asdict(algorithm) if is_dataclass(algorithm) else {}
        described = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "algorithm": {"name": type(algorithm).__name__, **settings},
            "classes": list(self.classes),
            "input": self.input and self.input.describe(),
            "shared_network": self.shared_network and self.shared_network.describe(),
            "trunks": [trunk._asdict() for trunk in self.trunks],
        }
        later: dict[str, Any] = {
            "combine": MEAN,
            "trunks": [],
            "noise_length": None,
        }  # terms that were added later, with the values that they had before
        return {name: value for name, value in described.items() if name not in later or value != later[name]}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the task's description, which identifies the agreement."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()


class Order(NamedTuple):
    """Request to a client to train or evaluate."""

    id: int
    round: int
    trained: int  # round of the client's valid state, 0 for none
    members: Sequence[int] = ()  # clients of a secure sum, in a simulation


class Reply(NamedTuple):
    """Reply of a client after training."""

    id: int
    message: Tensors
    metrics: Mapping[str, float]
    seconds: float
    counts: Tensors = {}  # of the previous round, from a deferred engine


class Counts(NamedTuple):
    """Evaluation counts of a client over parts of its samples; `federation.client` documents the entries."""

    id: int
    counts: Tensors


class Lost(NamedTuple):
    """Record of a client that did not reply: a value, not an exception."""

    id: int
    reason: str


class ByClient(dict[int, Tensors]):
    """Messages by client id: in a solo run each client has its own server."""


Messages = Tensors | ByClient  # a single message for all clients, or a message per client


def message_for(messages: Messages, id: int) -> Tensors:
    """Return the message for a client."""
    return messages[id] if isinstance(messages, ByClient) else messages


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
