"""A client's side of the wire: a request comes in, the client trains or counts, and an answer goes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from protonorm.core.randomness import one_thread
from protonorm.core.task import Order
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.answers import LastAnswer, request_key
from protonorm.deployment.frames import BadFrame
from protonorm.deployment.messages import (
    FORMAT,
    Answer,
    AnswerHeader,
    Request,
    RequestHeader,
    largest_message,
    read_request,
    write_answer,
)
from protonorm.deployment.site import OwnSite
from protonorm.errors import Diverged
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors

Allowed = Literal["off", "accuracy", "classes"]  # what an owner lets the server know of its evaluation
TOTALS = re.compile(r"(validation|test)\.(support|correct\..*)")  # what it learns where accuracy alone is allowed


class Unable(Exception):
    """A request that is right and cannot be fulfilled; its words are fit to be sent, and its cause may not be."""


class Node:
    """One client on its owner's machine; its state rests in a folder of its own and never leaves it."""

    def __init__(
        self,
        agreement: Agreement,
        site: OwnSite,
        store: FolderStore,
        allowed: Allowed = "off",
        *,
        begin_anew: bool = False,  # whether the owner wants a new network where its state is lost
        tell: Callable[[str], None] | None = None,  # hears of causes that the server is not told
    ) -> None:
        self._agreement, self._site, self._store, self._allowed = agreement, site, store, allowed
        self._begin_anew, self._tell = begin_anew, tell
        self._last = LastAnswer(store.folder)
        self._task = site.task
        self._largest = largest_message(self._task.schema, self._task.schema.down)

    def answer(self, content: bytes) -> bytes:
        """Answer a request; one that is not right, or that cannot be fulfilled, is declined in a sentence.

        The same request gives the same answer, however often it comes: a step is made of the round and the state
        alone, and the last answer is kept.
        """
        header: RequestHeader | None = None
        try:
            request = read_request(content, self._largest)
            header = request.header
            self._check(request)
            key = request_key(f"{self._allowed} {self._site.recipe.name} {self._site.training}", content)
            if (known := self._last.find(key)) is not None and self._keeps_up(header):
                return known
            answer = self._fulfil(request)
            self._last.keep(key, answer)
            return answer
        except BadFrame as error:
            return self._decline(header, f"The request is refused: {error}.")
        except (ValueError, Unable) as error:
            return self._decline(header, str(error), error.__cause__)

    def _check(self, request: Request) -> None:
        """Refuse what was not agreed on: another agreement, client or round, or a message that the schema forbids."""
        header = request.header
        if header.agreement != self._agreement.digest:
            raise ValueError(
                f"The server works by another agreement, {header.agreement[:16]}; "
                f"the one confirmed here is {self._agreement.digest[:16]}."
            )
        if header.client != self._site.id:
            raise ValueError(f"The request is for client {header.client}; this is client {self._site.id}.")
        last = header.round - (header.kind != "evaluate")  # the newest state there can be
        if not 1 <= header.round <= self._task.rounds or header.trained > last:
            raise ValueError(f"There is no round {header.round} that follows on round {header.trained}.")
        if unknown := set(header.parts) - set(self._agreement.evaluated):
            raise ValueError(f"The {sorted(unknown)[0]} part is not evaluated by the agreement.")
        self._task.schema.check_down(request.message)

    def _fulfil(self, request: Request) -> bytes:
        """Act, and say in words that tell nothing of this machine why that is impossible, if it is."""
        try:
            with one_thread():
                return write_answer(self._act(request))
        except Diverged as error:  # its sentence names the learning rate
            raise Unable(f"Its training left the finite numbers in round {request.header.round}.") from error
        except OSError as error:
            raise Unable(f"A file of its own cannot be read or written: {error.strerror}.") from error
        except Unable:
            raise
        except Exception as error:  # its own network may raise almost anything
            raise Unable(f"It met an error of its own ({type(error).__name__}).") from error

    def _act(self, request: Request) -> Answer:
        """Evaluate the round before, with the state as it is, and then train from it: both take the same message."""
        header, id = request.header, self._site.id
        state = self._state(header)
        counts: Tensors = {}
        if "evaluate" in header.kind and self._allowed != "off" and header.parts and state is not None:
            order = Order(id, header.evaluated_round, header.trained)
            found = evaluate_step(self._task, self._site, order, state, request.message, header.parts).counts
            counts = found if self._allowed == "classes" else totals(found)
        if header.kind == "evaluate":
            return Answer(self._header(header), {}, counts)
        order = Order(id, header.round, header.trained)
        state = first_state(self._task, self._site) if state is None else state
        state, reply = train_step(self._task, self._site, order, state, request.message)
        self._store.save(id, header.round, state)
        about = self._header(header).model_copy(update={"metrics": dict(reply.metrics), "seconds": reply.seconds})
        return Answer(about, reply.message, counts)

    def _keeps_up(self, header: RequestHeader) -> bool:
        """Tell whether the state that belongs to an earlier answer is still here."""
        return header.kind == "evaluate" or self._store.has(self._site.id, header.round)

    def _state(self, header: RequestHeader) -> Tensors | None:
        """Find the state that the server's record names, and drop those that no resumed round can need.

        None means that the state is lost and that the owner wants to begin anew: nothing is counted then, for what
        would be counted is not what was trained.
        """
        trained = header.trained
        if not trained:
            self._tidy(header)
            return first_state(self._task, self._site)
        try:
            state = self._store.load(self._site.id, trained)
        except ValueError as error:
            if self._begin_anew and header.kind != "evaluate":
                return None
            raise Unable(f"Its state after round {trained} is lost or damaged; its owner may begin anew.") from error
        self._tidy(header)
        return state

    def _tidy(self, header: RequestHeader) -> None:
        """Drop states of answers that did not count, and old ones; the server may have lost rounds from this one on."""
        if header.kind == "evaluate":
            return  # the round may not be committed yet
        id, trained = self._site.id, header.trained
        found = [round for owner, round, _ in self._store.files() if owner == id]
        for round in found:
            if trained < round < header.round:
                self._store.drop(id, round)
        if trained and all(round < header.round for round in found):
            self._store.keep_only(id, trained, header.chosen)

    def _header(self, asked: RequestHeader) -> AnswerHeader:
        return AnswerHeader(
            format=FORMAT,
            agreement=self._agreement.digest,
            client=self._site.id,
            round=asked.round,
            kind=asked.kind,
        )

    def _decline(self, asked: RequestHeader | None, sentence: str, cause: BaseException | None = None) -> bytes:
        """Say why not, in an answer that fits the request as far as it could be read."""
        if self._tell and cause:
            self._tell(f"{sentence} {cause}")
        about = AnswerHeader(
            format=FORMAT,
            agreement=self._agreement.digest,
            client=self._site.id,
            round=asked.round if asked else 0,
            kind=asked.kind if asked else "train",
            declined=sentence[:2000],
        )
        return write_answer(Answer(about, {}, {}))


def totals(counts: Tensors) -> Tensors:
    """Keep the numbers of samples and of right answers, without classes; all else is left out."""
    return {name: value.sum() for name, value in counts.items() if TOTALS.fullmatch(name)}
