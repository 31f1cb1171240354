"""What an algorithm is: pure functions from (state, message) to (state, message)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from torch import Tensor

from protonorm.core.model import SplitModel
from protonorm.core.node import Client, Server
from protonorm.core.schema import Schema
from protonorm.tensors import Tensors, snapshot

if TYPE_CHECKING:
    from protonorm.core.task import Task


class Step(NamedTuple):
    """What a node has after it acted."""

    state: Tensors  # what it remembers; never leaves it
    message: Tensors  # what it says to the other side
    metrics: Mapping[str, float] = {}  # numbers for the record
    figures: Tensors = {}  # arrays for the record's figures; the server's alone


class Algorithm(ABC):
    """A federated method.

    A method is a frozen dataclass; its fields are the paper's hyper-parameters. Three methods must be written:
    `schema`, `local_update` and `aggregate`. They are pure: they change neither `state` nor `message`, return all that
    is to be remembered, and draw random numbers from torch, numpy or random, which are seeded. States and messages are
    flat dicts of named tensors.
    """

    heterogeneous: ClassVar[bool] = True  # whether clients may have different networks
    widths: ClassVar[bool] = False  # whether clients may have one network at different widths
    auxiliary: ClassVar[bool] = False  # whether clients share a second network beside their own

    # What follows is a class variable of most methods, and depends on the settings of a few.

    @property
    def rules(self) -> tuple[str, ...]:
        """Name the prediction rules that it reports; `joint` adds up all others, and `scores` does not give it."""
        return ("logits",)

    @property
    def headline(self) -> str:
        """Name the rule of its single number."""
        return "logits"

    @property
    def depends_on_rounds(self) -> bool:
        """Tell whether what it does in a round depends on how many there will be."""
        return False

    @property
    def needs_shared_network(self) -> bool:
        """Tell whether all clients need the same network."""
        return not self.heterogeneous

    def auxiliary_dim(self, feature_dim: int) -> int:
        """Give the width of the second network's features, given d."""
        return feature_dim

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Fill in defaults that depend on the data set or the networks, both given by name."""
        return self

    @abstractmethod
    def schema(self, task: Task) -> Schema:
        """Say what each side may say: names, types, shapes and bounds."""

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Refuse, with a ValueError, a client's network that the method cannot work with."""
        del model, task  # any network will do

    def init_server(self, server: Server) -> Step:
        """Begin: what the server remembers and says before the first round."""
        return Step({}, {})

    def init_client(self, client: Client) -> Tensors:
        """Begin: what a client remembers, its model newly initialised."""
        return snapshot("model", client.model)

    @abstractmethod
    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train on a client's data, given what it remembers and what the server said."""

    @abstractmethod
    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Join what the round's clients said, given in the order of their numbers."""

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors | None:
        """Put the shared model parts of a message into a client's state; None for a method that shares none."""
        return None

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score the classes (B, K) under each rule: the largest wins, −inf never does. The model is loaded."""
        return {"logits": client.model(x)}
