"""Orders on their way: given to actors with all that is lacking there, heard of, and asked again of others.

The driver knows who holds which state, and sends one along only where it is lacking. What an actor that is lost still
owed is asked of the others, from the states that the last committed round has left: the round goes on, with the same
bits.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from protonorm.core.task import ByClient, Lost, Messages, Order, message_for
from protonorm.engines.processes.wire import BadFrame, raise_error
from protonorm.engines.ray.crew import START, Crew
from protonorm.engines.ray.frames import pack, unpack
from protonorm.engines.ray.member import Member
from protonorm.engines.ray.placement import Placement
from protonorm.engines.ray.quiet import reason
from protonorm.errors import Failed
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors

Answer = TypeVar("Answer")
Make = Callable[[int, dict[str, Any], Tensors], Answer]  # from a client's number and what came of it to an answer

DEPTH = 3  # orders that an actor has at once: it need not wait for the next one, and little is done for nobody
TRIES = 3  # times that a client may be at work in an actor that is lost, before it counts as lost itself


class Owed(NamedTuple):
    """An order that is not answered yet, and who has it."""

    member: Member
    order: Order


class Call(NamedTuple, Generic[Answer]):
    """One call of a verb: what is asked, and until when an answer counts."""

    header: dict[str, Any]
    messages: Messages
    make: Make[Answer]
    deadline: float | None
    end: float | None  # of the clock

    @property
    def is_late(self) -> bool:
        """Tell whether an order that is given now would be done for nobody."""
        return self.end is not None and time.monotonic() >= self.end

    @property
    def lateness(self) -> str:
        """Say of a client that it is late; nothing without a deadline."""
        return "" if self.deadline is None else f"it had not replied after {self.deadline:g} seconds"


class Orders:
    """The orders of one call at a time."""

    def __init__(self, crew: Crew, placement: Placement, store: FolderStore) -> None:
        self._crew, self._placement, self._store, self._ray = crew, placement, store, crew.ray
        self.owed: dict[Any, Owed] = {}  # by what Ray is waited for, in the order of asking
        self._queues: dict[int, deque[Order]] = {}  # by actor: orders that it will get
        self._stranded: list[Order] = []  # orders for which there is no actor at the moment
        self._died: Counter[int] = Counter()  # by client: actors that were lost while it was at work
        self._said: tuple[Messages | None, int, Any] = None, 0, b""  # the last message, its number, and what Ray has

    def give(self, call: Call[Any], order: Order) -> None:
        """Give an order to the actor that has the client, as soon as that one has little else to do."""
        loads = Counter({number: len(self._queues.get(number, ())) for number in self._crew.members})
        loads.update(owed.member.number for owed in self.owed.values())
        if not loads:
            self._stranded.append(order)
            return
        number = self._placement.actor_of(order.id, loads)
        self._queues.setdefault(number, deque()).append(order)
        self._send(call, self._crew.members[number])

    def _send(self, call: Call[Any], member: Member) -> None:
        """Send an actor its next orders, with all that is lacking there.

        What was sent is not taken back: Ray's actors wait in vain for a call that was cancelled on its way.
        """
        queue, held = self._queues.get(member.number), sum(owed.member is member for owed in self.owed.values())
        while queue and held < DEPTH and not call.is_late:
            order, file = queue.popleft(), b""
            if order.trained and order.trained not in member.holds.get(order.id, ()):
                file = self._store.copy_out(order.id, order.trained)
                member.holds.setdefault(order.id, set()).add(order.trained)
            alone = isinstance(call.messages, ByClient)
            number, message = (0, b"") if alone else self._message(member, call.messages)
            header = call.header | {"order": list(order), "message": number, "own": alone}
            own = message_for(call.messages, order.id) if alone else None
            self.owed[member.handle.act.remote(pack(header, own, file), message)] = Owed(member, order)
            held += 1

    def hear(self, call: Call[Answer]) -> dict[int, Answer | Lost]:
        """Wait for the next answer; who is late is lost, and an actor that is lost is replaced."""
        waited = [*self.owed, *self._crew.coming]
        if not waited:
            return self._give_up(call.lateness if call.is_late else "no actor is left, and none can be started")
        left = None if self.owed else START  # Ray tells of an actor that is gone
        if call.end is not None:
            left = max(0.0, call.end - time.monotonic())
        done, _ = self._ray.wait(waited, timeout=left)
        if not done:
            return self._give_up(call.lateness or f"no actor has begun after {START:g} seconds")
        if done[0] in self._crew.coming:
            self._welcome(call, done[0])
            return {}
        return self._take(call, done[0])

    def drop(self) -> None:
        """Wait for no answer any more, and send nothing more."""
        self.owed, self._queues, self._stranded, self._died = {}, {}, [], Counter()

    def _message(self, member: Member, message: Messages) -> tuple[int, Any]:
        """Number what the server says, and give it to those actors that have not heard it; a node gets it once."""
        before, number, ref = self._said
        if before is not message:
            assert not isinstance(message, ByClient)
            number, ref = number + 1, self._ray.put(pack({}, message))
            self._said = message, number, ref
        if member.message == number:
            return number, b""
        member.message = number
        return number, ref

    def _take(self, call: Call[Answer], ref: Any) -> dict[int, Answer | Lost]:
        """Take in what an actor has sent; one whose answer nobody can use is as good as lost."""
        member, order = self.owed[ref]
        try:
            header, tensors, file = unpack(self._ray.get(ref))
            if "error" not in header and "lacks" not in header:
                answer = call.make(order.id, header, tensors)
                self._keep(member, order, file)
                self._placement.note(order.id, float(header["seconds"]))
                del self.owed[ref]
                self._send(call, member)
                return {order.id: answer}
        except self._ray.exceptions.RayTaskError as error:
            raise Failed(f"An actor on node {member} failed: {error}") from error
        except self._ray.exceptions.RayError as error:
            return self._lose(call, member, reason(error))
        except (BadFrame, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return self._lose(call, member, f"it sent what nobody can use ({error})")
        del self.owed[ref]
        if "error" in header:
            if header["error"] == "file":
                header["text"] = f"{header.get('text')} (on node {member})"
            raise_error(header)
        member.message = 0  # it has lost something
        member.holds.pop(order.id, None)
        self.give(call, order)
        return {}

    def _keep(self, member: Member, order: Order, file: bytes) -> None:
        """Keep a new state in the run's folder, before anybody hears of the reply."""
        if file:
            self._store.copy_in(order.id, order.round, file)
            member.holds.setdefault(order.id, set()).add(order.round)
        self._crew.losses = 0

    def _lose(self, call: Call[Any], member: Member, why: str) -> dict[int, Any]:
        """Ask the others for what an actor that is lost still owed, and hire a new one.

        A client that was at work in several such actors counts as lost itself: it may be what ends them.
        """
        owed = [one.order for one in self.owed.values() if one.member is member]
        owed += self._queues.pop(member.number, ())
        self.owed = {ref: one for ref, one in self.owed.items() if one.member is not member}
        self._crew.lose(member)
        first, lost = owed[0].id, dict[int, Any]()
        self._died[first] += 1
        if self._died[first] >= TRIES:
            lost[first] = Lost(first, f"{TRIES} actors ended while it was at work, the last on node {member}: {why}")
        for order in owed[len(lost) :]:
            self.give(call, order)
        return lost

    def _welcome(self, call: Call[Any], ref: Any) -> None:
        """Let an actor that was hired begin; one that is of no use is given up, and another one hired."""
        member = self._crew.try_advance(ref)
        if member:
            stranded, self._stranded = self._stranded, []
            for order in stranded:
                self.give(call, order)

    def _give_up(self, why: str) -> dict[int, Any]:
        """Lose all that is still owed."""
        late = [owed.order for owed in self.owed.values()]
        late += [order for queue in self._queues.values() for order in queue] + self._stranded
        self.drop()
        return {order.id: Lost(order.id, why) for order in late}
