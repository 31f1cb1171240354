"""Client process: connects, waits for requests, answers them, and reconnects after interruptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from protonorm import __version__
from protonorm.core.frames import MAX_HEADER, BadFrame, split
from protonorm.core.text import shortened
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.engine import digest_of
from protonorm.deployment.guard import largest_answer
from protonorm.deployment.https.client import Connection, Refused, Taken, Unreachable, Withdrawn
from protonorm.deployment.https.protocol import HOLD
from protonorm.deployment.messages import RequestHeader, largest_request, read_answer_header
from protonorm.deployment.node import Node
from protonorm.deployment.process_lock import ended_by_signal
from protonorm.errors import Failed

SHORTEST, LONGEST = 0.25, 5.0  # seconds between two attempts to reach the server
LINGER = 45.0  # seconds that a client stays after the last round: the server repeats requests after 30 at most

Notify = Callable[[str, str], None]  # event name, and a sentence
T = TypeVar("T")


class Patience(NamedTuple):
    """Limits on a client's attempts to connect, in seconds."""

    unreachable: float = float("inf")  # while the server is unreachable
    taken: float = 2 * HOLD  # while a client with the same key is connected: one that was cut off is noticed by then


PATIENT = Patience()


def run_client(
    folder: ClientFolder, notify: Notify = lambda event, sentence: None, linger: float | None = LINGER
) -> None:
    """Run a client until the last round is done or a signal arrives; raise Refused if the server refuses it.

    Data and network are read and checked against the agreement before the client connects.
    """
    node, bundle = folder.node(), folder.bundle
    largest = largest_request(bundle.terms) + MAX_HEADER
    connection = Connection(bundle.host, bundle.port, *folder.tls, largest, largest_answer(bundle.terms))
    with ended_by_signal():
        try:
            Worker(connection, node, bundle.terms, notify, record=folder.trail.write_limited).run(linger)
        except Failed as error:
            folder.trail.write_limited("ended", text=str(error))
            raise


class Worker:
    """Worker that answers the server's requests until the last round is done or it is stopped."""

    def __init__(
        self,
        connection: Connection,
        node: Node,
        agreement: Agreement,
        notify: Notify,
        patience: Patience = PATIENT,
        record: Callable[..., None] = lambda event, **details: None,  # keeps the audit trail
    ) -> None:
        self._connection, self._node, self._agreement = connection, node, agreement
        self._notify, self._patience, self._record = notify, patience, record
        self._declined = 0  # requests in a row that were declined
        self._reason = ""  # of the last decline
        self._leave = float("inf")  # time to exit, after the last round

    def run(self, linger: float | None = LINGER) -> None:
        """Answer requests; after the last round stay for `linger` seconds, or without limit if it is None."""
        try:
            request = self._persist(lambda: self._connection.ask(wait=0))
            self._notify("connected", "The client is connected, and waits for requests.")
            address, version = self._connection.address, self._connection.server_version
            self._record("connected", address=address, version=version, certificate=self._connection.server_certificate)
            if version != __version__:
                version = shortened(version, 40) or "of an unknown version"
                parties = f"The server has protonorm {version}, this client {__version__}"
                self._notify("version", f"{parties}: all parties should have the same.")
            while True:
                if request:
                    last = self._answer(request)
                    self._leave = time.monotonic() + linger if last and linger is not None else float("inf")
                if time.monotonic() >= self._leave:
                    break
                request = self._ask()
            self._notify("finished", "All rounds are done.")
        finally:
            self._connection.close()

    def _ask(self) -> bytes | None:
        """Request work; None if the server has ended after the last round."""
        try:
            return self._persist(lambda: self._connection.ask(max(0.0, min(HOLD, self._leave - time.monotonic()))))
        except Unreachable:
            if time.monotonic() < self._leave:
                raise
            return None

    def _answer(self, request: bytes) -> bool:
        """Answer a request and send the answer; return whether it was the last one."""
        header: RequestHeader | None = None
        with suppress(BadFrame):
            header = RequestHeader.read(split(request)[0])
        details: dict[str, Any] = {"round": header.round, "kind": header.kind} if header else {}
        self._record("received", **details, bytes=len(request), digest=digest_of(request))
        start = time.monotonic()
        content = self._node.answer(request)
        seconds = time.monotonic() - start
        declined = read_answer_header(content)[0].declined
        details |= {"bytes": len(content), "digest": digest_of(content)}
        try:
            self._persist(lambda: self._connection.answer(request, content))
            self._record("declined" if declined else "sent", **details, text=declined)
        except Withdrawn as error:
            self._record("dropped", **details, text=str(error))
            self._notify("dropped", f"{error} If it asks again, the answer is at hand.")
        self._declined = self._declined + 1 if declined else 0
        known, self._reason = declined == self._reason, declined
        if declined:
            if not known or header is None:  # the same reason in each round is told once
                self._notify("declined", declined)
            time.sleep(min(LONGEST, SHORTEST * 2.0 ** min(self._declined - 1, 8)))  # a server that asks for nonsense
        if header is None:
            return False
        if declined and header.agreement not in (self._node.agreement.digest, self._agreement.root):
            raise Refused(declined)
        if not declined and header.kind != "amend":
            self._notify("answered", f"Round {header.round}: {header.kind}, {seconds:.1f} seconds.")
        return header.kind == "keep"  # the server's last request

    def _persist(self, step: Callable[[], T]) -> T:
        """Retry a step with exponential backoff while the server is unreachable, or lists a killed client as there."""
        pause, start, reported = SHORTEST, time.monotonic(), ""
        while True:
            try:
                result = step()
            except (Unreachable, Taken) as error:
                taken = isinstance(error, Taken)
                limit = self._patience.taken if taken else self._patience.unreachable
                if time.monotonic() >= min(start + limit, self._leave):
                    raise
                event = "waiting" if taken else "unreachable"
                if reported != event:
                    advice = "It may have ended just now: trying again for a while." if taken else "Trying again."
                    if self._leave < float("inf"):
                        advice = "The last request is answered, so that the server may have ended: all is well."
                    self._notify(event, f"{error} {advice}")
                reported = event
                time.sleep(pause)
                pause = min(2 * pause, LONGEST)
                continue
            if reported:
                self._notify("reached", "The server answers again.")
            return result
