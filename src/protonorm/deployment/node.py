"""Client side of the protocol: validate a request, train or evaluate, and return an answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.core.frames import BadFrame
from protonorm.core.masking import Identity
from protonorm.core.randomness import one_thread
from protonorm.core.task import Order
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.guard import check_scale
from protonorm.deployment.home import Home, own_measures
from protonorm.deployment.ledger import LEDGER, BudgetSpent, Ledger, Release
from protonorm.deployment.messages import (
    CONFIRMED,
    FORMAT,
    TERMS,
    USED,
    Answer,
    AnswerHeader,
    Request,
    RequestHeader,
    largest_request,
    read_request,
    write_answer,
)
from protonorm.deployment.secure import Member
from protonorm.deployment.settings import Allowed
from protonorm.deployment.site import OwnSite
from protonorm.errors import Diverged
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.files import replace
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, floats, root_mean_square

if TYPE_CHECKING:
    from protonorm.deployment.client_folder import ClientFolder

FILE = "answer.bin"
DIGEST = 32  # bytes of a SHA-256
ADVICE = "Stop the client, and start it with a lower --lr, or with --set clip=1: it goes on from its last good state."
SPENT = (
    "To allow more, raise protect.epsilon in policy.yaml, or by --set protect.epsilon=… without a policy, and start "
    "the client again; to end its part, `protonorm deploy leave`."
)
TOTALS = re.compile(r"(validation|test)\.(support|correct\..*)")  # counts that are sent if only accuracy is allowed


def request_key(settings: str, content: bytes) -> bytes:
    """Return the SHA-256 of a request and of the client's settings that determine its answer."""
    return hashlib.sha256(settings.encode() + b"\0" + content).digest()


class LastAnswer:
    """Cache of a client's last answer on its own disk: a repeated request costs nothing, also after a crash.

    The file holds the SHA-256 of the request and of the owner's settings (evaluation and training), the SHA-256 of the
    answer, and the answer as sent. A damaged file is ignored: the answer can be computed again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def find(self, key: bytes) -> bytes | None:
        """Return the cached answer to a request, or None."""
        try:
            with self.path.open("rb") as file:
                if file.read(DIGEST) != key:
                    return None
                digest, answer = file.read(DIGEST), file.read()
        except OSError:
            return None
        return answer if hashlib.sha256(answer).digest() == digest else None

    def keep(self, key: bytes, answer: bytes) -> None:
        """Replace the cached answer; a full disk must not prevent sending it."""
        with suppress(OSError):
            replace(self.path, key + hashlib.sha256(answer).digest() + answer)


class Unable(Exception):
    """Error for a valid request that cannot be fulfilled; its text may be sent to the server, its cause may not."""


class Node:
    """Client on its owner's machine; its state stays in a local folder."""

    def __init__(
        self,
        agreement: Agreement,
        site: OwnSite,
        store: FolderStore,
        allowed: Allowed = "off",
        *,
        begin_anew: bool = False,  # whether to start from a new network if its state is lost
        on_error: Callable[[str], None] | None = None,  # receives causes of errors, which are not sent to the server
        owner: ClientFolder | None = None,  # where its owner confirms amended terms
        received: float | None = None,  # largest root mean square of a tensor that the server publishes
        loss: bool = True,  # whether training losses and seconds are told
        record: Callable[..., None] = lambda event, **details: None,  # keeps the audit trail
        identity: Identity | None = None,  # private key that signs for secure sums
        unprotected: int = 0,  # earlier messages that were sent without noise, for the audit trail
    ) -> None:
        self._owner = owner
        self._agreement, self._site, self._store, self._allowed = agreement, site, store, allowed
        self._begin_anew, self._on_error, self._received = begin_anew, on_error, received
        self._tells_loss = loss and not site.training.protect.private and not site.task.secure
        self._record, self._unprotected = record, unprotected
        self._last, self._home = LastAnswer(store.folder), Home(store, site.id)
        self._ledger = store.folder.parent / LEDGER
        self._task, self._member = site.task, Member(identity, self._ledger, record)
        self._largest = largest_request(agreement)
        self._cause = ""  # last reported cause of a decline

    @property
    def agreement(self) -> Agreement:
        """Terms of the last request."""
        return self._agreement

    @property
    def site(self) -> OwnSite:
        """Data, network and training of the client."""
        return self._site

    def answer(self, content: bytes) -> bytes:
        """Answer a request; an invalid request, or one that cannot be fulfilled, is declined with a reason.

        Repeating a request returns the same answer: a step depends on the round and the state alone, and the last
        answer is cached.
        """
        header: RequestHeader | None = None
        try:
            request = read_request(content, self._largest)
            header = request.header
            if header.kind == "amend":
                return self._check_amendment(request)
            self._adopt(header.agreement)
            self._check(request)
            key = request_key(f"{self._allowed} {self._site.recipe(self._site.id).name} {self._site.training}", content)
            has_state = not header.trains or self._store.has(self._site.id, header.round)
            if self._task.secure and header.trains:  # a pledge is worth nothing without its key
                has_state = has_state and self._member.round == header.round
            if has_state and (cached := self._last.find(key)) is not None:  # with the state that belongs to it
                return cached
            answer = self._compute_answer(request)
            self._cause = ""
            self._last.keep(key, answer)
            return answer
        except BadFrame as error:
            return self._decline(header, f"The request is refused: {error}.")
        except (ValueError, Unable) as error:
            return self._decline(header, str(error), error.__cause__)

    def _adopt(self, digest: str) -> None:
        """Go on under other terms that the owner has confirmed."""
        if digest == self._agreement.digest or self._owner is None:
            return
        for terms in self._owner.confirmed_terms():
            if terms.digest == digest:
                self._owner.check(terms)
                self._agreement, self._site = terms, self._site.by_terms(terms)
                self._task = self._site.task

    def _check_amendment(self, request: Request) -> bytes:
        """Answer whether the owner has confirmed amended terms."""
        content = request.message.get(TERMS)
        if request.header.agreement != self._agreement.root or content is None or self._owner is None:
            raise ValueError("The server's terms do not amend the agreement that was confirmed here.")
        terms = Agreement.read(content.numpy().tobytes())
        confirmed = float(self._owner.offer(terms))
        header = self._header(request.header).model_copy(update={"metrics": {CONFIRMED: confirmed}})
        return write_answer(Answer(header.model_copy(update={"agreement": request.header.agreement}), {}, {}))

    def _check(self, request: Request) -> None:
        """Raise ValueError for another agreement, client or round, or a message that violates the schema."""
        header = request.header
        if header.agreement != self._agreement.digest:
            raise ValueError(
                f"The server works by another agreement, {header.agreement[:16]}; "
                f"the one confirmed here is {self._agreement.digest[:16]}. The server's owner has the bundle of today."
            )
        if header.client != self._site.id:
            raise ValueError(f"The request is for client {header.client}; this is client {self._site.id}.")
        last = header.published  # the newest possible state
        if not 1 <= header.round <= self._task.rounds or header.trained > last:
            raise ValueError(f"There is no round {header.round} that follows on round {header.trained}.")
        if unknown := set(header.parts) - set(self._agreement.evaluated):
            raise ValueError(f"The {sorted(unknown)[0]} part is not evaluated by the agreement.")
        if header.kind in ("members", "mask"):
            if not self._task.secure:
                raise ValueError("Messages are not masked by the agreement.")
            return
        self._task.schema.check_down(request.message)
        for name, value in floats(request.message).items():
            if self._received is not None and root_mean_square(value) > self._received:
                raise ValueError(f"The numbers of {name} are larger than the client's owner allows.")

    def _compute_answer(self, request: Request) -> bytes:
        """Compute the answer; raise Unable with a text that discloses nothing about this machine."""
        try:
            with one_thread():
                return write_answer(self._train_and_evaluate(request))
        except Diverged as error:  # its message contains the learning rate, which is not disclosed
            sentence = f"Its training left the finite numbers in round {request.header.round}."
            raise Unable(sentence) from ValueError(f"{error} {ADVICE}")
        except OSError as error:
            raise Unable(f"A file of its own cannot be read or written: {error.strerror}.") from error
        except Unable:
            raise
        except Exception as error:  # the client's own network may raise any error
            raise Unable(f"It met an error of its own ({type(error).__name__}).") from error

    def _train_and_evaluate(self, request: Request) -> Answer:
        """Evaluate the previous round with the current state, then train from it: both use the same message."""
        header, id = request.header, self._site.id
        if header.kind in ("members", "mask"):
            return Answer(self._header(header), self._sum(request), {})
        state = self._state(header)
        counts: Tensors = {}
        if state is not None and header.published:
            evaluated = self._evaluate(header, state, request.message)
            parts = header.parts if "evaluate" in header.kind and self._allowed != "off" else []
            counts = {name: value for name, value in evaluated.items() if name.partition(".")[0] in parts}
            counts = counts if self._allowed == "classes" else totals(counts)
        if not header.trains:
            return Answer(self._header(header), {}, counts)
        if self._task.secure and self._member.used(self._agreement, header.round):
            return Answer(self._header(header).model_copy(update={"metrics": {USED: 1.0}}), {}, counts)
        if self._site.training.protect.releases(self._task) > 1:
            self._charge(header, draft=True)  # no training for a message that must not be sent
        order = Order(id, header.round, header.trained)
        state = first_state(self._task, self._site) if state is None else state
        state, reply = train_step(self._task, self._site, order, state, request.message)
        try:
            check_scale(reply)
        except ValueError as error:  # the server would refuse it, and its owner would not hear of that
            sentence = f"Its message of round {header.round} is not sent: {error}."
            raise Unable(sentence) from ValueError(ADVICE)
        if reply.message and not self._task.secure:
            self._charge(header)
        self._store.save(id, header.round, state)
        self._home.add(header.round, metrics=dict(reply.metrics))
        about: dict[str, Any] = {"metrics": dict(reply.metrics), "seconds": reply.seconds}  # both tell of samples
        answer = self._header(header).model_copy(update=about if self._tells_loss else {})
        message = reply.message
        if self._task.secure:
            message = self._member.pledge(self._agreement, header.round, message, request.message)
        return Answer(answer, message, counts)

    def _sum(self, request: Request) -> Tensors:
        """Confirm the members of a secure sum, or mask the update."""
        header = request.header
        try:
            if header.kind == "members":
                return self._member.confirm(self._agreement, header.round, request.message)
            client = self._site.client(header.round)
            return self._member.mask(self._agreement, client, request.message, lambda: self._charge(header))
        except ValueError as error:
            raise Unable(str(error)) from None

    def _evaluate(self, header: RequestHeader, state: Tensors, message: Tensors) -> Tensors:
        """Evaluate the client for its owner, whatever the server asks; keep the measures and the message at home."""
        parts, trained = self._agreement.evaluated or ["validation", "test"], header.trained
        order = Order(self._site.id, header.published, trained)
        counts = evaluate_step(self._task, self._site, order, state, message, parts).counts
        if trained:
            self._home.add(order.round, **own_measures(self._task, counts, parts))
            self._home.describe(self._site)
            self._home.keep_message(order.round, trained, message)
        return counts

    def _charge(self, header: RequestHeader, *, draft: bool = False) -> None:
        """Record the message that is about to be sent, if it claims privacy; raise Unable if it must not be sent."""
        protect = self._site.training.protect
        if not protect.private:
            return
        release = Release(agreement=self._agreement.root, round=header.round, loss=protect.spends(self._task))
        try:
            ledger = Ledger.read(self._ledger)
        except ValueError as error:
            raise Unable("Its record of what was sent is damaged, and nothing more is sent.") from error
        try:
            ledger.check(release, protect)
        except BudgetSpent as error:
            raise Unable(str(error)) from ValueError(SPENT)
        except ValueError as error:
            raise Unable(str(error)) from None
        if not draft:
            ledger.charge(self._ledger, release)
            about = protect.told(ledger.spent) | ({"unprotected": self._unprotected} if self._unprotected else {})
            self._record("released", round=header.round, loss=release.loss, **about)

    def _state(self, header: RequestHeader) -> Tensors | None:
        """Load the state that the request names, and delete states that no resumed round can need.

        None means that the state is lost and the owner chose to start anew: nothing is evaluated then, because a new
        state is not the trained one.
        """
        trained = header.trained
        if not trained:
            self._drop_states(header)
            return first_state(self._task, self._site)
        try:
            state = self._store.load(self._site.id, trained)
        except ValueError as error:
            if self._begin_anew and header.trains:
                return None
            sentence = f"Its state after round {trained} is lost or damaged; its owner may begin anew (--begin-anew)."
            raise Unable(sentence) from error
        self._drop_states(header)
        return state

    def _drop_states(self, header: RequestHeader) -> None:
        """Delete states of rejected answers, and old states unless later ones show that the server lost rounds."""
        if not header.trains:
            return  # the round may not be committed yet
        id, trained = self._site.id, header.trained
        rounds = [round for owner, round, _ in self._store.files() if owner == id]
        for round in rounds:
            if trained < round < header.round:
                self._store.drop(id, round)
        if trained and all(round < header.round for round in rounds):
            self._store.keep_only(id, trained, header.chosen)

    def _header(self, request: RequestHeader | None, declined: str = "") -> AnswerHeader:
        """Create the header of an answer, matching the request as far as it could be parsed."""
        round, kind = (request.round, request.kind) if request else (0, "train")
        fields = {"format": FORMAT, "agreement": self._agreement.digest, "client": self._site.id}
        return AnswerHeader.model_validate({**fields, "round": round, "kind": kind, "declined": declined[:2000]})

    def _decline(self, request: RequestHeader | None, sentence: str, cause: BaseException | None = None) -> bytes:
        """Decline a request with a reason; the cause is reported to the owner only."""
        if self._on_error and cause and f"{sentence} {cause}" != self._cause:  # told once, until something changes
            self._cause = f"{sentence} {cause}"
            self._on_error(self._cause)
        return write_answer(Answer(self._header(request, sentence), {}, {}))


def totals(counts: Tensors) -> Tensors:
    """Return the numbers of samples and of correct predictions summed over classes; drop all other counts."""
    return {name: value.sum() for name, value in counts.items() if TOTALS.fullmatch(name)}
