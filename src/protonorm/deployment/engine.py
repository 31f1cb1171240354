"""Engine of a deployment: sends requests to clients on other machines, with retries and deadlines.

A disconnected client is asked again as soon as it is back. Below the quorum the requests to clients that were late,
lost or refused are repeated; accepted answers are kept meanwhile. `call` decides when a call ends.

The quorum is of the members that count: not of those that were revoked, removed or left, also during a round, and not
of those that were late or refused in several consecutive rounds. These are set aside: they are asked, but not waited
for, until one answers well.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from protonorm.core.frames import encode_body
from protonorm.core.task import Counts, Lost, Messages, Order, Reply, message_for
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.call import Call, Turn
from protonorm.deployment.events import Event, Observer, What, ignore
from protonorm.deployment.guard import Guard, Refusal
from protonorm.deployment.messages import CONFIRMED, FORMAT, TERMS, Answer, Kind, RequestHeader, write_request
from protonorm.deployment.secure import collect
from protonorm.errors import Again, Failed
from protonorm.federation.policy import Policy
from protonorm.tensors import Tensors

OFFERING, KEEPING = 10.0, 60.0  # seconds to answer whether terms are confirmed, and to take the last message
STATUS = {"asked": "was asked", "answered": "has answered", "delivered": "was sent what it keeps"}
STATUS |= {"acknowledged": "has what it keeps"}
MASKING: dict[Kind, dict[str, str]] = {  # steps of a secure sum after training
    "members": {
        "delivered": "was asked to confirm the members of the secure sum",
        "acknowledged": "has confirmed the members of the secure sum",
    },
    "mask": {"delivered": "was asked for its masked message", "acknowledged": "has sent its masked message"},
}
OUTSIDE: dict[What, What] = {"asked": "delivered", "answered": "acknowledged"}  # events of calls outside of rounds
PATIENCE = 600.0  # default deadline in seconds
NAMED = 5  # maximal number of clients named in a message
Orders = Sequence[Order]
Replies = Iterator[Reply | Lost]
Outcomes = dict[int, Answer | Lost]  # by client
WITHHELD = "its owner does not let it be evaluated"


class Arrived(NamedTuple):
    """Content received from a client, or its failure."""

    client: int  # sender as identified by the transport, not by the content
    content: bytes = b""
    failure: str = ""  # reason, if the client was lost
    gone: bool = False  # whether it is no longer a member
    current: bool | None = None  # whether the content answers the pending request, if that is known


class Transport(Protocol):
    """Carrier of requests and answers, which authenticates senders."""

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send requests; return the reasons for clients that cannot be reached."""

    def pull(self, seconds: float) -> Sequence[Arrived]:
        """Return what has arrived, waiting at most so many seconds if nothing has."""

    def close(self) -> None:
        """Release the transport's resources."""


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a message."""
    return hashlib.sha256(content).hexdigest()


def accuracy_of(counts: Tensors, rule: str) -> dict[str, float]:
    """Return a client's accuracy, of the test part or else of the validation part, as far as its owner tells it."""
    for part in ("test", "validation"):
        correct, support = counts.get(f"{part}.correct.{rule}"), counts.get(f"{part}.support")
        if correct is not None and support is not None and (samples := int(support.sum())):
            return {"accuracy": int(correct.sum()) / samples}
    return {}


class FederationEngine:
    """Engine whose clients are reached over a transport and keep their own states.

    Evaluation is deferred: clients evaluate a round in the request that trains the next one, since both use the same
    message and the same states.
    """

    def __init__(
        self,
        agreement: Agreement,
        transport: Transport,
        policy: Policy,
        notify: Observer = ignore,
        clock: Callable[[], float] = time.monotonic,
        chosen: int = 0,
        missed: Mapping[int, int] | None = None,  # consecutive missed rounds by client
        note: Callable[[int, int], None] = lambda id, missed: None,  # keeps such a number
    ) -> None:
        self.grace: float | None = None
        self.patience: int | None = None  # missed rounds after which a client is set aside; None: never
        self.missed, self._note = dict(missed or {}), note
        self._agreement, self._transport, self._policy = agreement, transport, policy
        self._notify, self._clock = notify, clock
        self.guard = Guard(agreement, self._report_refusal, lambda id: self._policy.label(id))
        self.chosen = chosen  # best round so far: clients keep its states
        self.bytes_up = self.bytes_down = 0  # on the wire
        self.committed = 0  # last committed round
        self._first = True  # whether this is the first call: clients may still be connecting
        self._start, self._bytes_before, self._asked = 0.0, (0, 0), 0  # of the current round
        self._round = 0
        self._digest = ""  # of the answer that is looked at
        self._waiting: tuple[int, ...] = ()  # last reported waiting state
        self._unasked: set[int] = set()  # members that are not asked, and count for the quorum
        self._quiet = False  # whether the current call is no part of a round
        self._outside: Mapping[What, What] = {}  # its events that are reported, and as what
        self._status: Mapping[str, str] = STATUS  # and in which words
        self._offered: set[tuple[int, str]] = set()  # clients with the digests of amended terms that they were sent

    def train(self, orders: Orders, messages: Messages, deadline: float | None = None) -> Replies:
        """Train clients; yield replies in the order of the orders."""
        return self.evaluate_and_train(orders, messages, (), deadline)

    def evaluate_and_train(
        self, orders: Orders, messages: Messages, parts: Sequence[str], deadline: float | None = None
    ) -> Replies:
        """Evaluate the previous round and train the next in one request; yield replies in the order of the orders."""
        number, rounds = orders[0].round, self._agreement.rounds
        self._start, self._bytes_before, self._asked = self._clock(), (self.bytes_up, self.bytes_down), len(orders)
        counted = sum(order.id not in self.aside for order in orders)
        numbers = {"clients": len(orders), "needed": self._quorum("train", counted)}
        self._notify(Event("round", f"Round {number} of {rounds} begins.", number, numbers=numbers))
        kind: Kind = "evaluate+train" if parts else "train"
        outcomes = self._call(kind, orders, messages, parts)
        masked = self._sum(orders, outcomes, messages) if self._agreement.task.secure else None
        for id, answer in outcomes.items():
            if isinstance(answer, Lost):
                yield answer
            else:
                message = answer.message if masked is None else masked.get(id, {})
                yield Reply(id, message, answer.header.metrics, answer.header.seconds, answer.counts)

    def _sum(self, orders: Orders, outcomes: Outcomes, messages: Messages) -> dict[int, Tensors]:
        """Return the masked messages of the members of a secure sum; none if the round is burned."""
        answers = {id: answer for id, answer in outcomes.items() if isinstance(answer, Answer)}
        ask = partial(self.ask, patient=True, deadline=self._deadline)
        try:
            published = message_for(messages, orders[0].id)
            return collect(self._agreement, orders, answers, published, ask, self._policy.label)
        except ValueError as error:
            sentence = f"Round {self._round} is burned, and yields nothing: {str(error).rstrip('.')}."
            self._notify(Event("burned", sentence, self._round))
            return {}

    def evaluate(self, orders: Orders, messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Evaluate clients by a separate request; yield Lost for clients whose owners do not allow it."""
        for id, answer in self._call("evaluate", orders, messages, parts).items():
            if isinstance(answer, Lost):
                yield answer
            else:
                yield Counts(id, answer.counts) if answer.counts else Lost(id, WITHHELD)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Report a committed round; clients learn from the next request which states they may delete."""
        self.committed, self.chosen = round, chosen
        up, down = self.bytes_up - self._bytes_before[0], self.bytes_down - self._bytes_before[1]
        numbers = {"replied": len(replied), "lost": self._asked - len(replied), "seconds": self._clock() - self._start}
        numbers |= {"bytes_up": up, "bytes_down": down}
        sentence = f"Round {round} is done: {len(replied)} of {self.members} clients took part."
        self._notify(Event("committed", sentence, round, numbers=numbers))

    def fetch(self, id: int, trained: int) -> Tensors:
        """Raise Failed: a client's state never leaves its owner's machine."""
        raise Failed(f"The state of {self._policy.label(id)} rests on its owner's machine.")

    def deliver(self, orders: Orders, messages: Messages) -> None:
        """Send clients the message that their trained networks are to use; who is away is not waited for."""
        self.ask("keep", orders, messages, deadline=KEEPING)

    def offer(self, round: int, ids: Iterable[int], terms: Agreement) -> list[int]:
        """Send clients amended terms; return those whose owners have confirmed them."""
        content = torch.frombuffer(bytearray(terms.write()), dtype=torch.uint8)
        orders = [Order(id, round, 0) for id in sorted(ids)]
        for order in orders:
            if (order.id, terms.digest) not in self._offered:  # offers are repeated, and told once
                sentence = f"Round {round}: {self._policy.label(order.id)} is to confirm amended terms."
                self._notify(Event("delivered", sentence, round, order.id, digest=terms.digest))
        self._offered |= {(order.id, terms.digest) for order in orders}
        answers = self.ask("amend", orders, {TERMS: content}, deadline=OFFERING)
        replies = {id: answer for id, answer in answers.items() if isinstance(answer, Answer)}
        return [id for id, answer in replies.items() if answer.header.metrics.get(CONFIRMED)]

    def renew(self, agreement: Agreement, policy: Policy, unasked: Collection[int] = ()) -> None:
        """Go on with other members, or by amended terms; `unasked` are members that have not confirmed them."""
        self._agreement, self._policy, self._unasked = agreement, policy, set(unasked)
        self.guard.adopt(agreement)

    def _quorum(self, kind: Kind, clients: int) -> int:
        """Return the answers that a call to so many clients needs: a share of all members, or all of a secure sum."""
        least = self._agreement.least_answers if "train" in kind else 0
        return max(1, least, min(clients, self._policy.needed(clients + len(self._unasked - self.aside))))

    @property
    def members(self) -> int:
        """Number of members, also of those that are not asked."""
        return len(self._policy.participants) + len(self._unasked)

    @property
    def _deadline(self) -> float:
        return PATIENCE if self._policy.deadline is None else self._policy.deadline

    @property
    def aside(self) -> set[int]:
        """Clients that were late or refused too often, and are not waited for."""
        return {id for id, missed in self.missed.items() if self.patience and missed >= self.patience}

    def pull(self, seconds: float) -> None:
        """Wait, and drop what arrives: there is nobody to ask."""
        self._transport.pull(seconds)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def _call(self, kind: Kind, orders: Orders, messages: Messages, parts: Sequence[str]) -> Outcomes:
        """Ask clients; the first call also waits for disconnected clients."""
        patient, self._first = self._first, False
        return self.ask(kind, orders, messages, parts, patient=patient)

    def ask(
        self,
        kind: Kind,
        orders: Orders,
        messages: Messages,
        parts: Sequence[str] = (),
        *,
        patient: bool = False,
        deadline: float | None = None,
    ) -> Outcomes:
        """Send each client its order; return the outcome for each, in the order of the orders.

        A patient call also waits a while for disconnected clients, even if the quorum is met. A call with a deadline of
        its own is no part of a round, and needs no quorum.
        """
        if not orders:
            return {}
        self._quiet, self._outside = deadline is not None, {} if kind == "amend" else OUTSIDE
        self._status = STATUS | MASKING.get(kind, {})
        call = self._begin(kind, orders, messages, parts, deadline, patient=patient)
        while True:
            now = self._clock()
            for turn in call.expire(now):
                self._report_client("late", turn)
            self._push(call, now)
            if call.is_done(now):
                if not self._quiet and "train" in kind:
                    for turn in call.end():
                        self._report_client("late", turn)
                    self._judge(call)
                return {order.id: call.outcome(order.id) for order in orders}
            self._report_waiting(call, now)
            if call.is_overdue(now) and self._unasked and not self._quiet and "train" in kind:
                raise Again(f"Round {self._round} begins again, perhaps with members that have confirmed its terms.")
            for arrived in self._transport.pull(call.wake(now) - now):
                self._take(call, arrived)

    def _judge(self, call: Call) -> None:
        """Count consecutive missed rounds; set clients aside that miss too many, and take them back."""
        for id in call.answers:
            self._take_back(id)
        for id, reason in call.missed().items():
            self._count(id, self.missed.get(id, 0) + 1)
            if self.missed[id] == self.patience:
                label, why = self._policy.label(id), reason.rstrip(".")
                sentence = (
                    f"C{label[1:]} is set aside after {self.patience} rounds without an answer that counts: {why}. "
                    "It is asked on, but not waited for, until it answers well."
                )
                self._notify(Event("aside", sentence, self._round, id))

    def _take_back(self, id: int) -> None:
        if id in self.aside:
            label = self._policy.label(id)
            sentence = f"C{label[1:]} has answered well, and is waited for again."
            self._notify(Event("back", sentence, self._round, id))
        self._count(id, 0)

    def _count(self, id: int, missed: int) -> None:
        if self.missed.get(id, 0) != missed:
            self.missed[id] = missed
            self._note(id, missed)

    def _begin(
        self,
        kind: Kind,
        orders: Orders,
        messages: Messages,
        parts: Sequence[str],
        deadline: float | None,
        *,
        patient: bool,
    ) -> Call:
        self._round, self._waiting = orders[0].round, ()
        self.guard.expect(self._round, kind, [order.id for order in orders], parts)
        bodies: dict[int, bytes] = {}  # a shared message is encoded once
        turns = []
        for order in orders:
            message = message_for(messages, order.id)
            if id(message) not in bodies:
                bodies[id(message)] = encode_body(message)
            digest = self._agreement.root if kind == "amend" else self._agreement.digest
            fields = {"format": FORMAT, "agreement": digest, "kind": kind, "parts": list(parts)}
            fields |= {"client": order.id, "round": order.round, "trained": order.trained, "chosen": self.chosen}
            turns.append(Turn(order, write_request(RequestHeader.model_validate(fields), bodies[id(message)])))
        if deadline is not None:
            return Call(turns, lambda clients: 0, self._clock(), deadline, patient=patient)
        quorum = partial(self._quorum, kind)
        return Call(turns, quorum, self._clock(), self._deadline, patient=patient, aside=self.aside, grace=self.grace)

    def _push(self, call: Call, now: float) -> None:
        """Send the requests that are due."""
        due = call.due(now)
        unreachable = self._transport.push({id: turn.request for id, turn in due.items()}) if due else {}
        for id, turn in due.items():
            if id in unreachable:
                reported = turn.status == "away"
                call.miss(turn, "away", now, unreachable[id])
                if not reported:
                    self._report_client("away", turn)
                continue
            if turn.status == "refused":
                self.guard.reopen(id)
            call.ask(turn, now)
            self.bytes_down += len(turn.request)
            self._report_client("asked", turn, digest_of(turn.request), bytes=len(turn.request))

    def _take(self, call: Call, arrived: Arrived) -> None:
        """Validate what arrived; a final refusal marks the client as refused until it is asked again."""
        turn, now = call.turns.get(arrived.client), self._clock()
        if arrived.failure:
            if turn is not None and arrived.client not in call.answers:
                call.counted -= {arrived.client} if arrived.gone else set()
                call.miss(turn, "away" if arrived.gone else "lost", now, arrived.failure)
                self._report_client("away", turn)
            return
        self.bytes_up += len(arrived.content)
        self._digest = digest_of(arrived.content)
        answer = self.guard.admit(arrived.client, arrived.content, current=arrived.current)
        late = isinstance(answer, Refusal) and answer.why == "late" and arrived.client in self.aside
        if late and self.guard.is_sound(arrived.content):
            self._take_back(arrived.client)
        if turn is None:
            return
        if not isinstance(answer, Refusal):
            call.answer(arrived.client, answer, now)
            numbers = {"bytes": len(arrived.content), "seconds": answer.header.seconds}
            numbers |= accuracy_of(answer.counts, self._agreement.task.algorithm.headline)
            self._report_client("answered", turn, self._digest, **numbers)
        elif answer.final:
            call.miss(turn, "refused", now, answer.sentence)

    def _report_waiting(self, call: Call, now: float) -> None:
        """Report the clients that block the call, once until that changes."""
        missing, answered = call.waits_for(now), len(call.answers)
        key = (answered, *sorted(turn.order.id for turn in missing)) if missing else ()
        if key and key != self._waiting:
            reasons = {turn.order.id: turn.reason.rstrip(".") or "it has not answered yet" for turn in missing[:NAMED]}
            named = [f"{self._policy.label(id)} ({reason})" for id, reason in reasons.items()]
            more = [f"and {len(missing) - NAMED} more"] if len(missing) > NAMED else []
            enough = answered >= call.needed
            sentence = (
                f"Round {self._round} waits{' a while for others' if enough else ''}: {answered} of {len(call.turns)} "
                f"clients have answered, {call.needed} must; missing: {', '.join([*named, *more])}."
            )
            numbers = {"answered": answered, "needed": call.needed}
            self._notify(Event("waiting", sentence, self._round, numbers=numbers))
        self._waiting = key

    def _report_client(self, what: What, turn: Turn, digest: str = "", **numbers: float) -> None:
        if self._quiet and what not in self._outside:
            return
        what = self._outside[what] if self._quiet else what
        status = self._status.get(what, f"is {what}: {turn.reason.rstrip('.')}")
        sentence = f"Round {self._round}: {self._policy.label(turn.order.id)} {status}."
        self._notify(Event(what, sentence, self._round, turn.order.id, numbers=numbers, digest=digest))

    def _report_refusal(self, refusal: Refusal) -> None:
        sentence = f"Round {self._round}: {refusal.sentence}"
        self._notify(Event("refused", sentence, self._round, refusal.client, refusal.why, digest=self._digest))
