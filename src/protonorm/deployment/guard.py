"""Validation of clients' answers on the server; rejected answers are reported and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from protonorm.core.frames import MAX_HEADER, BadFrame
from protonorm.core.task import Counts, Reply
from protonorm.core.text import shortened
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.events import DECLINES, Why
from protonorm.deployment.messages import (
    PER_TENSOR,
    Answer,
    AnswerHeader,
    Kind,
    largest_counts,
    largest_message,
    read_answer_header,
    read_answer_tensors,
)
from protonorm.deployment.secure import answer_schema
from protonorm.federation.evaluation import Tally, countable
from protonorm.tensors import Tensors, all_finite, floats, root_mean_square

LARGEST_SCALE = 1e6  # root mean square of a tensor in a reply; training does not produce larger values
LONGEST = 500  # characters of a rejection reason


class Refusal(NamedTuple):
    """Rejected answer."""

    client: int  # sender as identified by the transport
    why: Why
    sentence: str
    final: bool  # whether the client is lost for this round


OnRefusal = Callable[[Refusal], None]


class Guard:
    """Validator of answers: an answer counts once, and only in the call that requested it."""

    def __init__(
        self,
        agreement: Agreement,
        on_refusal: OnRefusal | None = None,
        label: Callable[[int], str] = lambda id: f"client {id}",  # names a client in messages
    ) -> None:
        self._agreement, self._task, self._on_refusal, self._label = agreement, agreement.task, on_refusal, label
        schema = self._task.received_schema
        self.largest = largest_message(schema, schema.up) + largest_counts(self._task) + PER_TENSOR * self._task.secure
        self.refused: Counter[Why] = Counter()
        self._round = 0
        self._kind: Kind = "train"
        self._digest = agreement.digest
        self._parts: tuple[str, ...] = ()
        self._open: set[int] = set()  # clients whose answers are pending
        self._closed: set[int] = set()  # clients that have answered
        self._declined: dict[int, str] = {}  # reasons of clients that declined last, as reported

    def adopt(self, agreement: Agreement) -> None:
        """Check answers by amended terms from now on."""
        self._agreement, self._task = agreement, agreement.task

    def expect(self, round: int, kind: Kind, clients: Iterable[int], parts: Iterable[str] = ()) -> None:
        """Begin a call: only answers to it are accepted from now on."""
        self._digest = self._agreement.root if kind == "amend" else self._agreement.digest
        self._round, self._kind, self._parts = round, kind, tuple(parts)
        self._open, self._closed = set(clients), set()

    def reopen(self, client: int) -> None:
        """Accept another answer of a client in the same call, after a rejected one."""
        self._closed.discard(client)
        self._open.add(client)

    def is_sound(self, content: bytes) -> bool:
        """Return whether a late answer would have counted in its round."""
        try:
            header, body = read_answer_header(content, self.largest)
            message, _ = read_answer_tensors(body)
            answer_schema(self._task, header.kind).check_up(message, "it")
            check_scale(Reply(header.client, message, header.metrics, header.seconds))
        except (BadFrame, ValueError):
            return False
        return not header.declined

    def admit(self, sender: int, content: bytes, *, current: bool | None = None) -> Answer | Refusal:
        """Validate a client's answer: return it, or the refusal. Never raises, whatever the content is.

        `current` says whether it came as the answer to the pending request, if the transport knows: then any refusal is
        final, because nothing else will come.
        """
        outcome = self._look(sender, content)
        if isinstance(outcome, Refusal) and current and sender in self._open:
            outcome = outcome._replace(final=True)
        if isinstance(outcome, Refusal) and not self._is_repeated(outcome):
            self.refused[outcome.why] += 1
            if self._on_refusal:
                self._on_refusal(outcome)
        if not isinstance(outcome, Refusal) or outcome.final:
            self._open.discard(sender)
            self._closed.add(sender)
        return outcome

    def _is_repeated(self, refusal: Refusal) -> bool:
        """Return whether a decline comes too late to matter, for the reason that was reported before."""
        known = self._declined.get(refusal.client) == refusal.sentence
        if refusal.why == "declined":
            self._declined[refusal.client] = refusal.sentence
        return known and not refusal.final

    def _look(self, sender: int, content: bytes) -> Answer | Refusal:
        waited_for = sender in self._open

        def refuse(why: Why, sentence: str, *, final: bool = waited_for) -> Refusal:
            text = f"The answer of {self._label(sender)} is refused: {shortened(sentence, LONGEST)}."
            return Refusal(sender, why, text, final and waited_for)

        try:
            header, body = read_answer_header(content, self.largest)
        except BadFrame as error:
            return refuse("malformed", str(error))
        if header.client == sender and header.declined and header.round <= self._round:
            late = 0 < header.round < self._round  # the client may still answer in this round
            return refuse("declined", DECLINES + header.declined.rstrip("."), final=waited_for and not late)
        if (problem := self._misplaced(sender, header)) is not None:
            return refuse(*problem, final=problem[0] not in ("late", "repeated"))
        stage: Why = "content"
        try:
            message, counts = read_answer_tensors(body)
            self._check(sender, message, counts)
            stage = "scale"
            check_scale(Reply(sender, message, header.metrics, header.seconds))
        except BadFrame as error:
            return refuse("malformed", str(error))
        except ValueError as error:
            return refuse(stage, str(error).rstrip("."))
        self._declined.pop(sender, None)
        return Answer(header, message, counts)

    def _misplaced(self, sender: int, header: AnswerHeader) -> tuple[Why, str] | None:
        """Check an answer's header; return the reason for rejection, or None."""
        if header.client != sender:
            return "identity", f"it says that it comes from client {header.client}"
        if header.agreement != self._digest:
            return "agreement", f"it is for another agreement, {header.agreement[:16]}"
        if header.round < self._round:
            return "late", f"it is for round {header.round}, and round {self._round} is on"
        if header.round > self._round:
            return "round", f"it is for round {header.round}, and round {self._round} is on"
        if sender in self._closed:
            return "repeated", f"its part in round {self._round} is over"
        if sender not in self._open:
            return "unknown client", f"it was not asked in round {self._round}"
        if header.kind != self._kind:
            return "late", f"it was asked to {self._kind}, and answers to {header.kind}"
        return None

    def _check(self, sender: int, message: Tensors, counts: Tensors) -> None:
        """Check the reply by the algorithm's schema, and the counts by the metrics' declarations."""
        if self._kind not in ("train", "evaluate+train", "members", "mask"):
            if message:
                raise ValueError("it holds a reply, and was asked to evaluate alone")
        else:
            answer_schema(self._task, self._kind).check_up(message, "it")
        if not counts:
            return  # not requested, or not allowed by the client's owner
        rules = {*self._task.algorithm.rules, "received"}
        names = {"support", "unseen", *(f"{count}.{rule}" for count in countable() for rule in rules)}
        if strange := counts.keys() - {f"{part}.{name}" for part in self._parts for name in names}:
            raise ValueError(f"it holds counts {sorted(strange)[0]}, which was not asked for")
        if not all(all_finite(value) for value in floats(counts).values()):
            raise ValueError("it holds counts that are not finite")
        for part in self._parts:
            Tally(part, self._task.algorithm.rules, 1, self._task.num_classes).check(Counts(sender, counts))


def check_scale(reply: Reply, largest: float = LARGEST_SCALE) -> None:
    """Raise ValueError if the root mean square of a tensor exceeds the limit."""
    for name, value in floats(reply.message).items():
        if root_mean_square(value) > largest:
            raise ValueError(f"the numbers of {name} are larger than training can make them")


def largest_answer(agreement: Agreement) -> int:
    """Return the maximal size of a client's answer in bytes."""
    return Guard(agreement).largest + MAX_HEADER
