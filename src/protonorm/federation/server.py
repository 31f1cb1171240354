"""Server half of the message path: incoming → combine → conclude.

The client half, train → outgoing, is in `federation.client`. Engines transport messages between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from protonorm.core.algorithm import Additive, Step, checked_step
from protonorm.core.combine import scaled
from protonorm.core.randomness import SERVER, seeded
from protonorm.core.robust import Robust, Standing
from protonorm.core.secure_sum import MASKED, MaskedSum
from protonorm.core.task import ByClient, Lost, Messages, Reply, Task
from protonorm.errors import Diverged
from protonorm.federation.policy import Policy
from protonorm.runs.states import Checkpoint
from protonorm.tensors import Tensors, all_finite, floats, nbytes, numbers

BURNED = "the round is burned, because a member of the secure sum dropped out"


class ServerStep(NamedTuple):
    """New state and message of the server; in a solo run, those of each client's server."""

    state: Messages
    message: Messages
    metrics: Mapping[str, float] = {}
    figures: Tensors = {}
    standings: Mapping[int, Standing] = {}  # of the clients' contributions, by client, if the fold keeps these


@dataclass
class Replies:
    """Totals of the replies of a round, and the lost clients."""

    ids: list[int] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)  # reported values by name
    lost: dict[int, str] = field(default_factory=dict)  # reasons by client
    nbytes: int = 0
    floats: int = 0

    def add(self, reply: Reply) -> None:
        """Add an admitted reply to the totals."""
        self.ids.append(reply.id)
        for name, value in reply.metrics.items():
            self.metrics.setdefault(name, []).append(value)
        self.nbytes += nbytes(reply.message)
        self.floats += numbers(reply.message) + (reply.message[MASKED].numel() if MASKED in reply.message else 0)


def admit(task: Task, answer: Reply | Lost, replies: Replies, policy: Policy) -> bool:
    """Check a reply against schema and policy (incoming), record it or why it is lost; return whether it counts."""
    if isinstance(answer, Lost):
        replies.lost[answer.id] = answer.reason
        return False
    if task.secure and not answer.message:
        replies.lost[answer.id] = BURNED
        return False
    try:
        task.received_schema.check_up(answer.message, f"The reply of {policy.label(answer.id)}")
        for check in policy.checks:
            check(answer)
    except ValueError as error:
        replies.lost[answer.id] = str(error)
        return False
    replies.add(answer)
    return True


class Gathering:
    """Accumulator of a round's messages for the server's step (combine, conclude).

    Messages of additive methods are summed as they arrive; other methods receive all of them at once.
    """

    def __init__(self, task: Task, number: int, state: Tensors) -> None:
        self._task, self._number, self._state = task, number, state
        self._server, method = task.server(number), task.algorithm
        self._additive = method if isinstance(method, Additive) and method.combines else None
        self._fold = self._server.combine()
        self._masked = MaskedSum(task) if task.secure else None
        self._messages: list[Tensors] = []

    def add(self, message: Tensors, factor: float = 1.0) -> None:
        """Add a client's message; a factor of its weight is for methods that combine messages."""
        if self._masked:
            self._masked.add(message)
        elif self._additive:
            part = self._additive.contribution(self._server, self._state, message)
            self._fold.add(part if factor == 1 else scaled(part, factor))
        else:
            self._messages.append(message)

    def standings(self) -> list[Standing]:
        """Compare the contributions with each other, in the order of the messages; empty if they are not kept."""
        return self._fold.standings() if isinstance(self._fold, Robust) else []

    def conclude(self) -> Step:
        """Return the server's new state and message; raise Burned if messages of a secure sum are missing."""
        method = self._task.algorithm
        with seeded(self._task.seed, self._number, SERVER):
            if self._additive:
                step = self._additive.conclude(self._server, self._state, (self._masked or self._fold).sums())
                return checked_step(method, "conclude", step)
            step = method.aggregate(self._server, self._state, iter(self._messages))
            return checked_step(method, "aggregate", step)


class Servers:
    """Server of a round; in a solo run, a server for each client."""

    def __init__(self, task: Task, point: Checkpoint) -> None:
        self._task, self._point, self._number = task, point, point.round + 1
        state = point.state
        self._together = None if isinstance(state, ByClient) else Gathering(task, self._number, state)
        self._states, self._messages = ByClient(), ByClient()
        self._ids: list[int] = []
        if isinstance(state, ByClient) and isinstance(point.message, ByClient):
            self._states, self._messages = ByClient(state), ByClient(point.message)

    def add(self, reply: Reply, factor: float = 1.0) -> None:
        """Add a client's reply, with a factor of its weight."""
        if self._together is not None:
            self._together.add(reply.message, factor)
            self._ids.append(reply.id)
            return
        alone = Gathering(self._task, self._number, self._states[reply.id])
        alone.add(reply.message)
        step = alone.conclude()
        self._states[reply.id], self._messages[reply.id] = step.state, step.message

    def conclude(self) -> ServerStep:
        """Return the state and message after the round, of the server or of each client's server."""
        if self._together is not None:
            standings = dict(zip(self._ids, self._together.standings(), strict=False))
            return ServerStep(*self._together.conclude(), standings)
        return ServerStep(self._states, self._messages)


def check_message(task: Task, message: Tensors, number: int) -> None:
    """Raise if the server's next message is not finite or violates the schema."""
    invalid = [name for name, value in floats(message).items() if not all_finite(value)]
    if invalid:
        raise Diverged(f"What the server would say after round {number} is not finite: {', '.join(invalid)}.")
    task.schema.check_down(message, f"What the server would say after round {number}")
