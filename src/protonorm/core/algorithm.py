"""Base classes of federated algorithms: pure functions from (state, message) to (state, message).

User-defined methods may return anything, so the `checked_*` functions validate return values before they are used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from torch import Tensor

from protonorm.core.combine import Contribution, Sums, combine
from protonorm.core.model import SplitModel
from protonorm.core.node import Client, Server
from protonorm.core.schema import Schema
from protonorm.core.types import shown
from protonorm.errors import Failed
from protonorm.tensors import Tensors, snapshot

if TYPE_CHECKING:
    from protonorm.core.task import Task


class Step(NamedTuple):
    """Result of one call of a client's or the server's method."""

    state: Tensors  # kept until the next round; never sent
    message: Tensors  # sent to the other side
    metrics: Mapping[str, float] = {}  # scalars for the record
    figures: Tensors = {}  # arrays for the record's figures; only from the server


class Algorithm(ABC):
    """Base class of federated methods.

    A subclass is a frozen dataclass whose fields are the paper's hyper-parameters. It implements `schema`,
    `local_update` and `aggregate`; a subclass of `Additive` implements `contribution` and `conclude` instead of
    `aggregate`. These methods are pure: they modify neither `state` nor `message`, return everything that is to be
    kept, and draw random numbers from torch, numpy or random, which are seeded. States and messages are flat dicts of
    named tensors.
    """

    heterogeneous: ClassVar[bool] = True  # whether clients may have different networks
    widths: ClassVar[bool] = False  # whether clients may have the same network at different widths

    last_round: ClassVar[int | None] = None  # round with all clients after which nothing changes; None if there is none

    # Properties, because a few methods compute them from their settings; most override them with a class variable.

    @property
    def rules(self) -> tuple[str, ...]:
        """Prediction rules that are reported; `joint` is the sum of all others and is not returned by `scores`."""
        return ("logits",)

    @property
    def headline(self) -> str:
        """Prediction rule of the reported headline accuracy."""
        return "logits"

    @property
    def auxiliary(self) -> bool:
        """Whether clients share a second network besides their own."""
        return False

    @property
    def depends_on_rounds(self) -> bool:
        """Whether a round's computation depends on the total number of rounds."""
        return False

    @property
    def needs_shared_network(self) -> bool:
        """Whether all clients need the same network."""
        return not self.heterogeneous

    def auxiliary_dim(self, feature_dim: int) -> int:
        """Return the width of the second network's features, given d."""
        return feature_dim

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Return the method with defaults filled in that depend on the data set or the networks.

        Args:
            dataset: Name of the data set.
            networks: Names of the clients' networks.
        """
        return self

    @abstractmethod
    def schema(self, task: Task) -> Schema:
        """Return the schema of the messages of both sides: names, types, shapes and bounds."""

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise a ValueError if the method cannot work with a client's network."""
        del model, task  # any network fits by default

    def init_server(self, server: Server) -> Step:
        """Return the server's initial state and message, before the first round."""
        return Step({}, {})

    def init_client(self, client: Client) -> Tensors:
        """Return a client's initial state; its model is newly initialised."""
        return snapshot("model", client.model)

    @abstractmethod
    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train on a client's data.

        Args:
            client: Data, networks and settings of the client in this round.
            state: State that the client returned last.
            message: The server's message.

        Returns:
            The client's new state and its reply.
        """

    @abstractmethod
    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Aggregate the replies of a round.

        Args:
            server: Sizes and settings of the server in this round.
            state: State that the server returned last.
            replies: Messages of the round's clients, in the order of their ids.

        Returns:
            The server's new state and its next message.
        """

    def points_of(self, client: Client) -> Tensors:
        """Compute the points (n, P) of the training samples, by trunk, if their second moments are all that is sent."""
        del client
        return {}

    def prototypes_of(self, client: Client, message: Tensors) -> Tensors:
        """Return a message with its prototypes (K', d), if it has them in another form."""
        del client
        return message

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors | None:
        """Return a client's state with the shared model parts of a message; None if the method shares none."""
        return None

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Compute the class scores (B, K) of a batch under each prediction rule.

        Args:
            client: The client; its model has the weights of `state`.
            state: The client's state.
            message: The server's message.
            x: Batch of inputs.

        Returns:
            Scores (B, K) by rule. The largest score of a row is the prediction; −inf excludes a class.
        """
        return {"logits": client.model(x)}


class Additive(Algorithm):
    """Base class of methods whose server needs only sums over the replies.

    Replies are folded one at a time, as they arrive, through `server.combine`.
    """

    @abstractmethod
    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Return what a reply adds to the sums, given the server's state; must be deterministic."""

    @abstractmethod
    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Return the server's new state and next message, given the sums of the round."""

    @property
    def combines(self) -> bool:
        """Whether the server uses these functions, because the method has no `aggregate` of its own."""
        return type(self).aggregate is Additive.aggregate

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Fold the contributions of the replies and call `conclude` on their sums."""
        contributions = (self.contribution(server, state, reply) for reply in replies)
        return self.conclude(server, state, combine(contributions, server.combine()))


def checked_step(algorithm: Algorithm, method: str, result: Any) -> Step:
    """Return a method's result if it is a valid `Step`, with metrics as floats; raise Failed otherwise."""
    where = f"{type(algorithm).__name__}.{method}"
    if not isinstance(result, Step):
        raise Failed(f"{where} must return pn.Step(state, message), but returned {_kind(result)}.")
    for name in ("state", "message", "figures"):
        _check_tensors(where, f"the {name}", getattr(result, name))
    if not isinstance(result.metrics, Mapping):
        raise Failed(f"{where} must return the metrics as a dict of numbers, but they are {_kind(result.metrics)}.")
    metrics: dict[str, float] = {}
    for name, value in result.metrics.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            raise Failed(f"{where} must return metrics that are numbers, but {name!r} is {_kind(value)}.")
        with suppress(OverflowError):  # an integer beyond the range of floats
            metrics[name] = float(value)
        if not math.isfinite(metrics.get(name, math.inf)):
            text = shown(value) if isinstance(value, int) else value
            raise Failed(f"{where} must return metrics that are finite numbers, but {name!r} is {text}.")
    return result._replace(metrics=metrics)


def checked_state(algorithm: Algorithm, method: str, state: Any) -> Tensors:
    """Return a method's result if it is a valid state; raise Failed otherwise."""
    return _check_tensors(f"{type(algorithm).__name__}.{method}", "the state", state)


def checked_scores(algorithm: Algorithm, result: Any, shape: tuple[int, int]) -> Tensors:
    """Return a method's scores (B, K) by rule if they are valid; raise Failed otherwise."""
    where = f"{type(algorithm).__name__}.scores"
    for rule, scores in _check_tensors(where, "the scores", result).items():
        if scores.shape != shape:
            raise Failed(
                f"{where} must return scores of shape {shape}, samples and classes, but those of {rule!r} have shape "
                f"{tuple(scores.shape)}."
            )
    return dict(result)


def checked_schema(algorithm: Algorithm, schema: Any) -> Schema:
    """Return an algorithm's result if it is a `Schema`; raise Failed otherwise."""
    if not isinstance(schema, Schema):
        raise Failed(f"{type(algorithm).__name__}.schema must return a pn.Schema, but returned {_kind(schema)}.")
    return schema


def _check_tensors(where: str, what: str, tensors: Any) -> Tensors:
    if not isinstance(tensors, dict):
        raise Failed(f"{where} must return {what} as a dict of tensors, but it is {_kind(tensors)}.")
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise Failed(f"{where} must return {what} as a dict of tensors, but {name!r} in it is {_kind(value)}.")
    return tensors


def _kind(value: Any) -> str:
    """Return the type of a value with its article, for messages."""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
