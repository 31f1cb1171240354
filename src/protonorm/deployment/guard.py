"""The server's door: every answer is looked at before it counts, and whatever is refused is told and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import torch

from protonorm.core.task import Counts
from protonorm.core.types import shortened
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.frames import BadFrame
from protonorm.deployment.messages import (
    Answer,
    AnswerHeader,
    Kind,
    largest_counts,
    largest_message,
    read_answer_header,
    read_answer_tensors,
)
from protonorm.federation.client import ANSWERS
from protonorm.federation.evaluation import Tally
from protonorm.tensors import Tensors, all_finite, floats

LARGEST_SCALE = 1e6  # root mean square of a tensor in a reply; what is more is no training
LONGEST = 500  # characters of what is said about an answer

Why = Literal[
    "malformed", "unknown client", "identity", "agreement", "late", "round", "repeated", "declined", "content", "scale"
]


class Refusal(NamedTuple):
    """An answer that does not count."""

    client: int  # who sent it, as the transport knows
    why: Why
    sentence: str
    final: bool  # whether the client's part in this round is lost by it


class Guard:
    """Take the answers to one call after the other; an answer counts once, and only if it was asked for."""

    def __init__(
        self,
        agreement: Agreement,
        scale: float = LARGEST_SCALE,
        tell: Callable[[Refusal], None] | None = None,
    ) -> None:
        self._agreement, self._task, self._scale, self._tell = agreement, agreement.task, scale, tell
        schema = self._task.schema
        self.largest = largest_message(schema, schema.up) + largest_counts(self._task)
        self.refused: Counter[Why] = Counter()
        self._round = 0
        self._kind: Kind = "train"
        self._parts: tuple[str, ...] = ()
        self._open: set[int] = set()  # clients whose answers are waited for
        self._closed: set[int] = set()  # clients that were asked, and have answered

    def expect(self, round: int, kind: Kind, clients: Iterable[int], parts: Iterable[str] = ()) -> None:
        """Begin a call: from now on only answers to it count."""
        self._round, self._kind, self._parts = round, kind, tuple(parts)
        self._open, self._closed = set(clients), set()

    def reopen(self, client: int) -> None:
        """Give a client whose answer was refused another chance in the same call."""
        self._closed.discard(client)
        self._open.add(client)

    def admit(self, sender: int, content: bytes) -> Answer | Refusal:
        """Look at what a client sent: the answer, or why it does not count. Nothing that is sent raises an error."""
        found = self._look(sender, content)
        if isinstance(found, Refusal):
            self.refused[found.why] += 1
            if self._tell:
                self._tell(found)
        if not isinstance(found, Refusal) or found.final:
            self._open.discard(sender)
            self._closed.add(sender)
        return found

    def _look(self, sender: int, content: bytes) -> Answer | Refusal:
        waited_for = sender in self._open

        def refuse(why: Why, sentence: str, *, final: bool = waited_for) -> Refusal:
            said = f"The answer of client {sender} is refused: {shortened(sentence, LONGEST)}."
            return Refusal(sender, why, said, final and waited_for)

        try:
            header, body = read_answer_header(content, self.largest)
        except BadFrame as error:
            return refuse("malformed", str(error))
        if header.client == sender and header.declined and header.round in (0, self._round):
            return refuse("declined", f"it declines: {header.declined.rstrip('.')}")
        if (problem := self._misplaced(sender, header)) is not None:
            return refuse(*problem, final=problem[0] not in ("late", "repeated"))
        try:
            message, counts = read_answer_tensors(body)
        except BadFrame as error:
            return refuse("malformed", str(error))
        try:
            self._check(sender, message, counts)
        except ValueError as error:
            return refuse("content", str(error).rstrip("."))
        if (name := self._out_of_scale(message)) is not None:
            return refuse("scale", f"the numbers of {name} are larger than training can make them")
        return Answer(header, message, counts)

    def _misplaced(self, sender: int, header: AnswerHeader) -> tuple[Why, str] | None:
        """Say what is wrong with an answer before its tensors are looked at."""
        if header.client != sender:
            return "identity", f"it says that it comes from client {header.client}"
        if header.agreement != self._agreement.digest:
            return "agreement", f"it is for another agreement, {header.agreement[:16]}"
        if header.round < self._round:
            return "late", f"it is for round {header.round}, and round {self._round} is on"
        if header.round > self._round:
            return "round", f"it is for round {header.round}, and round {self._round} is on"
        if sender in self._closed:
            return "repeated", f"its part in round {self._round} is over"
        if sender not in self._open:
            return "unknown client", f"nobody asked it in round {self._round}"
        if header.kind != self._kind:
            return "late", f"it was asked to {self._kind}, and answers to {header.kind}"
        return None

    def _check(self, sender: int, message: Tensors, counts: Tensors) -> None:
        """Check the reply by the algorithm's schema, and counts by what they can be."""
        if self._kind == "evaluate":
            if message:
                raise ValueError("it holds a reply, and was asked to evaluate alone")
        else:
            self._task.schema.check_up(message, "it")
        if not counts:
            return  # nobody asked for them, or its owner does not allow them
        if strange := counts.keys() - self._countable():
            raise ValueError(f"it holds counts {sorted(strange)[0]}, which nobody asked for")
        if not all(all_finite(value) for value in floats(counts).values()):
            raise ValueError("it holds counts that are not finite")
        for part in self._parts:
            Tally(part, self._task.algorithm.rules, 1, self._task.num_classes).check(Counts(sender, counts))

    def _countable(self) -> set[str]:
        """Name all that can be counted in this call."""
        rules = {*self._task.algorithm.rules, "received"}
        names = {"support", "unseen", *(f"{one}.{rule}" for one in ANSWERS for rule in rules)}
        return {f"{part}.{name}" for part in self._parts for name in names}

    def _out_of_scale(self, message: Tensors) -> str | None:
        """Name a tensor whose root mean square is beyond all training."""
        for name, value in floats(message).items():
            if value.numel() and float(torch.linalg.vector_norm(value.double())) > self._scale * value.numel() ** 0.5:
                return name
        return None
