"""Clients on other machines: requests are pushed, and answers pulled until a call has what it needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from protonorm.core.task import Counts, Lost, Messages, Order, Reply, message_for
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.calls import Call, Turn
from protonorm.deployment.events import Event, Observer, What, ignore
from protonorm.deployment.frames import encode_body
from protonorm.deployment.guard import Guard, Refusal
from protonorm.deployment.messages import FORMAT, Answer, Kind, RequestHeader, write_request
from protonorm.federation.policy import Policy

PATIENCE = 600.0  # seconds that clients have if nobody says otherwise
NAMED = 5  # clients that a sentence names


class Arrived(NamedTuple):
    """What a client sent, or that it cannot send any more."""

    client: int  # as the transport knows the sender, not as the content says
    content: bytes = b""
    failure: str = ""  # a reason, if the client was lost on the way


class Transport(Protocol):
    """What carries requests and answers; it knows who a sender is."""

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send requests; give the reasons of those clients that cannot be reached."""

    def pull(self, seconds: float) -> Sequence[Arrived]:
        """Give what has arrived; wait so many seconds at most if nothing has."""

    def close(self) -> None:
        """End what was opened."""


class Remote:
    """Ask clients over a transport; they keep their states themselves."""

    def __init__(
        self,
        agreement: Agreement,
        transport: Transport,
        policy: Policy,
        tell: Observer = ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agreement, self._transport, self._policy = agreement, transport, policy
        self._tell, self._clock = tell, clock
        self.guard = Guard(agreement, tell=self._tell_refusal)
        self.chosen = 0  # the best round so far: clients keep their states after it
        self.bytes_up = self.bytes_down = 0  # that went over the wire
        self._round = 0
        self._waiting: tuple[int, ...] = ()  # what was last told of waiting

    def ask(
        self,
        kind: Kind,
        orders: Sequence[Order],
        messages: Messages,
        parts: Sequence[str] = (),
        *,
        patient: bool = False,
    ) -> dict[int, Answer | Lost]:
        """Send each client its order; give what came of each, in the order of the orders.

        A patient call waits a while for those who are away too, although the others may be enough.
        """
        if not orders:
            return {}
        call = self._begin(kind, orders, messages, parts, patient=patient)
        while True:
            now = self._clock()
            for turn in call.expire(now):
                self._tell_of("late", turn)
            self._push(call, now)
            if call.is_done(now):
                return {order.id: call.outcome(order.id) for order in orders}
            self._tell_of_waiting(call, now)
            for arrived in self._transport.pull(call.wake(now) - now):
                self._take(call, arrived)

    def close(self) -> None:
        """End the transport."""
        self._transport.close()

    def _begin(
        self, kind: Kind, orders: Sequence[Order], messages: Messages, parts: Sequence[str], *, patient: bool
    ) -> Call:
        self._round, self._waiting = orders[0].round, ()
        self.guard.expect(self._round, kind, [order.id for order in orders], parts)
        bodies: dict[int, bytes] = {}  # each message is encoded once, however many clients get it
        turns = []
        for order in orders:
            message = message_for(messages, order.id)
            if id(message) not in bodies:
                bodies[id(message)] = encode_body(message)
            turns.append(Turn(order, self._request(kind, order, bodies[id(message)], parts)))
        deadline = PATIENCE if self._policy.deadline is None else self._policy.deadline
        return Call(turns, self._policy.needed(len(orders)), self._clock(), deadline, patient=patient)

    def _request(self, kind: Kind, order: Order, body: bytes, parts: Sequence[str]) -> bytes:
        header = RequestHeader.model_validate(
            {
                "format": FORMAT,
                "agreement": self._agreement.digest,
                "client": order.id,
                "round": order.round,
                "kind": kind,
                "trained": order.trained,
                "chosen": self.chosen,
                "parts": list(parts),
            }
        )
        return write_request(header, body)

    def _push(self, call: Call, now: float) -> None:
        """Ask those whose turn it is."""
        due = call.due(now)
        unreachable = self._transport.push({id: turn.request for id, turn in due.items()}) if due else {}
        for id, turn in due.items():
            if id in unreachable:
                known = turn.stands == "away"
                call.miss(turn, "away", now, unreachable[id])
                if not known:
                    self._tell_of("away", turn)
                continue
            if turn.stands == "refused":
                self.guard.reopen(id)
            call.ask(turn, now)
            self.bytes_down += len(turn.request)
            self._tell_of("asked", turn, bytes=len(turn.request))

    def _take(self, call: Call, arrived: Arrived) -> None:
        """Let what arrived pass the guard; a refusal that ends a client's part makes it a lost one for now."""
        turn, now = call.turns.get(arrived.client), self._clock()
        if arrived.failure:
            if turn is not None and arrived.client not in call.answers:
                call.miss(turn, "lost", now, arrived.failure)
                self._tell_of("away", turn)
            return
        self.bytes_up += len(arrived.content)
        found = self.guard.admit(arrived.client, arrived.content)
        if turn is None:
            return
        if not isinstance(found, Refusal):
            call.answers[arrived.client] = found
            self._tell_of("answered", turn, bytes=len(arrived.content), seconds=found.header.seconds)
        elif found.final:
            call.miss(turn, "refused", now, found.sentence)

    def _tell_of_waiting(self, call: Call, now: float) -> None:
        """Say whom the call waits for, once until something changes."""
        missing, answered = call.waits_for(now), len(call.answers)
        key = (answered, *sorted(turn.order.id for turn in missing)) if missing else ()
        if key and key != self._waiting:
            reasons = {turn.order.id: turn.reason.rstrip(".") or "it has not answered yet" for turn in missing[:NAMED]}
            named = [f"{self._policy.label(id)} ({reason})" for id, reason in reasons.items()]
            more = [f"and {len(missing) - NAMED} more"] if len(missing) > NAMED else []
            sentence = (
                f"Round {self._round} waits: {answered} of {len(call.turns)} clients have answered, {call.needed} "
                f"must; missing: {', '.join([*named, *more])}."
            )
            numbers = {"answered": answered, "needed": call.needed}
            self._tell(Event("waiting", sentence, self._round, numbers=numbers))
        self._waiting = key

    def _tell_of(self, what: What, turn: Turn, **numbers: float) -> None:
        said = {
            "asked": "was asked",
            "answered": "has answered",
            "late": f"is late: {turn.reason}",
            "away": f"is away: {turn.reason.rstrip('.')}",
        }[what]
        sentence = f"Round {self._round}: {self._policy.label(turn.order.id)} {said}."
        self._tell(Event(what, sentence, self._round, turn.order.id, numbers=numbers))

    def _tell_refusal(self, found: Refusal) -> None:
        self._tell(Event("refused", f"Round {self._round}: {found.sentence}", self._round, found.client, found.why))


def reply_of(answer: Answer) -> Reply:
    """Take the reply out of an answer."""
    return Reply(answer.header.client, answer.message, answer.header.metrics, answer.header.seconds)


def counts_of(answer: Answer) -> Counts | Lost:
    """Take the counts out of an answer; an owner who does not allow them is as one who was not there."""
    id = answer.header.client
    return Counts(id, answer.counts) if answer.counts else Lost(id, "its owner does not let it be evaluated")
