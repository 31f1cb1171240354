"""What all parties of a federation agree on, and what they hand each other in a round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import Any, NamedTuple

from protonorm.core.algorithm import Algorithm
from protonorm.core.model import NetworkRecipe, SplitModel
from protonorm.core.node import Server
from protonorm.core.randomness import SERVER, seeded
from protonorm.core.returned import checked_schema
from protonorm.core.schema import Schema
from protonorm.tensors import Tensors


class InputSpec(NamedTuple):
    """What one sample is, as it is stored."""

    shape: tuple[int, ...]  # (H, W, C) for pictures, (D,) for vectors, (L,) for tokens
    dtype: str  # uint8, float32 or int64
    vocabulary: int | None = None  # V, the number of different tokens, if it is tokens

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Give the shape that a network is made for: (C, H, W) for pictures, (D,) for vectors, (L, V) for tokens."""
        if self.vocabulary is not None:
            return (*self.shape, self.vocabulary)
        return (self.shape[2], self.shape[0], self.shape[1]) if len(self.shape) == 3 else self.shape

    def describe(self) -> dict[str, Any]:
        """Describe it in plain data."""
        known = {} if self.vocabulary is None else {"vocabulary": self.vocabulary}
        return {"shape": list(self.shape), "type": self.dtype, **known}


@dataclass(frozen=True)
class Task:
    """What all parties agree on; it needs no data. `Algorithm.schema` is given one."""

    algorithm: Algorithm  # the method and its hyper-parameters
    classes: tuple[str, ...]  # K names
    feature_dim: int  # d
    rounds: int  # R
    seed: int  # of all that is random in the run
    input: InputSpec | None = None  # shape and type of a sample
    shared_network: NetworkRecipe | None = None  # everybody's network, or the second one that clients share
    head_bias: bool = True  # whether the clients' heads have a bias; only where a head is shared
    server_lr: float = 0.01  # of what a server trains
    server_batch_size: int = 32  # likewise

    @property
    def num_classes(self) -> int:
        """Count the classes, K."""
        return len(self.classes)

    def server(self, round: int) -> Server:
        """Give the server what it has; networks are there before round 1, newly initialised."""
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
        )

    @cached_property
    def template(self) -> SplitModel:
        """Make one network of the shared kind, for its names and shapes."""
        if self.shared_network is None:
            raise ValueError(f"{type(self.algorithm).__name__} needs a network that all clients share; there is none.")
        with seeded(self.seed, 0, SERVER, "template"):
            return self.shared_network()

    @cached_property
    def schema(self) -> Schema:
        """Say what each side may say."""
        return checked_schema(self.algorithm, self.algorithm.schema(self))

    def describe(self) -> dict[str, Any]:
        """Describe the task in plain data."""
        algorithm = self.algorithm
        fields: dict[str, Any] = asdict(algorithm) if is_dataclass(algorithm) else {}
        return {
            "algorithm": {"name": type(algorithm).__name__, **fields},
            "classes": list(self.classes),
            "feature_dim": self.feature_dim,
            "rounds": self.rounds,
            "seed": self.seed,
            "input": None if self.input is None else self.input.describe(),
            "shared_network": None if self.shared_network is None else self.shared_network.describe(),
            "head_bias": self.head_bias,
            "server_lr": self.server_lr,
            "server_batch_size": self.server_batch_size,
        }

    @cached_property
    def digest(self) -> str:
        """Condense the task to a SHA-256, which tells one agreement from another."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()


class Order(NamedTuple):
    """A client that is asked to act."""

    id: int
    round: int
    trained: int  # the round whose state is the valid one, 0 for none


class Reply(NamedTuple):
    """What a client says after it trained."""

    id: int
    message: Tensors
    metrics: Mapping[str, float]
    seconds: float


class Counts(NamedTuple):
    """What a client counted over parts of its samples; `federation.client` says what is in it."""

    id: int
    counts: Tensors


class Lost(NamedTuple):
    """A client that did not answer: a value, not an exception."""

    id: int
    reason: str


class ByClient(dict[int, Tensors]):
    """Tensors of each client, by its number: in a solo run each has a server of its own."""


Messages = Tensors | ByClient  # one message for all, or one for each client


def message_for(messages: Messages, id: int) -> Tensors:
    """Find the message for a client."""
    return messages[id] if isinstance(messages, ByClient) else messages
