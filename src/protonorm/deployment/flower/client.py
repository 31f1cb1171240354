"""Client process: connects, waits for requests, answers them, and reconnects after interruptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from protonorm.core.frames import BadFrame, split
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.flower.fleet import INTERVAL, Fleet, Letter, Refused, Restarted, Taken, Unreachable, Withdrawn
from protonorm.deployment.folders import ClientFolder
from protonorm.deployment.messages import RequestHeader, largest_message, read_answer_header
from protonorm.deployment.node import Node
from protonorm.deployment.process_lock import ended_by_signal
from protonorm.deployment.settings import address_of, refuse_plaintext
from protonorm.errors import Failed

FORGOTTEN = 2 * INTERVAL + 5  # seconds after which the server considers a killed client disconnected
SHORTEST, LONGEST = 0.25, 5.0  # seconds between two attempts to reach the server
ENDING = 3.0  # seconds to wait for a pending heartbeat on exit
LINGER = 45.0  # seconds that a client stays after the last round: the server repeats requests after 30 at most

Tell = Callable[[str, str], None]  # event name, and a sentence
Found = TypeVar("Found")


class Patience(NamedTuple):
    """Limits on a client's attempts to connect, in seconds."""

    unreachable: float = float("inf")  # while the server is unreachable
    taken: float = FORGOTTEN  # while a client with the same key is connected


PATIENT = Patience()


def run_client(
    folder: ClientFolder,
    tell: Tell = lambda event, sentence: None,
    *,
    patience: Patience = PATIENT,
    linger: float | None = LINGER,
) -> None:
    """Run a client until the last round is done or a signal arrives; raise Refused if the server refuses it.

    Data and network are read and checked against the agreement before the client connects.
    """
    node, bundle = folder.node(), folder.bundle
    schema = bundle.terms.task.schema
    if folder.settings.plaintext:
        refuse_plaintext(bundle.host)
    authority = None if folder.settings.plaintext else folder.authority
    largest = largest_message(schema, schema.down) + 2**16
    fleet = Fleet(address_of(bundle.host, bundle.port), authority, folder.key, largest)
    with ended_by_signal():
        Worker(fleet, node, bundle.terms, tell, patience).run(linger)


class Worker:
    """Worker that answers the server's requests until the last round is done or it is stopped."""

    def __init__(
        self, fleet: Fleet, node: Node, agreement: Agreement, tell: Tell, patience: Patience = PATIENT
    ) -> None:
        self._fleet, self._node, self._agreement = fleet, node, agreement
        self._tell, self._patience = tell, patience
        self._ended = threading.Event()
        self._leave = float("inf")  # time to exit, after the last round

    def run(self, linger: float | None = LINGER) -> None:
        """Answer requests; after the last round stay for `linger` seconds, or without limit if it is None."""
        beating = threading.Thread(target=self._beat, daemon=True)
        try:
            self._connect()
            beating.start()
            while time.monotonic() < self._leave:
                letter = self._ask()
                if letter is not None and letter.content:
                    last = self._answer(letter)
                    self._leave = time.monotonic() + linger if last and linger is not None else float("inf")
            self._tell("finished", f"All {self._agreement.rounds} rounds are done.")
        finally:
            self._ended.set()
            self._fleet.close()
            if beating.is_alive():
                beating.join(ENDING)  # a running daemon thread can crash the process while Python exits

    def _connect(self, after: int | None = None) -> None:
        """Register with the server, retrying while it still lists a killed client with the same key as connected."""
        end = 0.0  # end of the attempts, counted from the first conflict
        while True:
            try:
                self._persist(lambda: self._fleet.activate(after))
                break
            except Taken as error:
                end = end or time.monotonic() + self._patience.taken
                if time.monotonic() >= end:
                    raise
                self._tell("waiting", f"{error} It may have ended just now: trying again for a while.")
                time.sleep(1.0)
        self._tell("connected", "The client is connected, and waits for requests.")

    def _ask(self) -> Letter | None:
        """Request work; register again first if the server has restarted."""
        before = self._fleet.activated
        try:
            try:
                return self._persist(self._fleet.ask)
            except Restarted:
                self._connect(before)
        except Withdrawn:
            pass
        except Unreachable:
            if time.monotonic() < self._leave:
                raise  # otherwise the server has ended after the last round
        return None

    def _answer(self, letter: Letter) -> bool:
        """Answer a request and send the answer; return whether it was the last one."""
        start = time.monotonic()
        content = self._node.answer(letter.content)
        seconds = time.monotonic() - start
        try:
            self._persist(lambda: self._fleet.answer(letter, content, seconds))
        except (Restarted, Withdrawn) as error:
            self._tell("dropped", f"{error} If it asks again, the answer is at hand.")
        declined = read_answer_header(content)[0].declined
        asked = _header(letter.content)
        if declined:
            self._tell("declined", declined)
        if asked is None:
            return False
        if declined and asked.agreement != self._agreement.digest:
            raise Refused(declined)
        if not declined:
            self._tell("answered", f"Round {asked.round}: {asked.kind}, {seconds:.1f} seconds.")
        ending = "evaluate" if self._agreement.evaluated else "train"
        return asked.round == self._agreement.rounds and asked.kind == ending

    def _persist(self, step: Callable[[], Found]) -> Found:
        """Retry a step with exponential backoff while the server is unreachable."""
        pause, end, told = SHORTEST, time.monotonic() + self._patience.unreachable, False
        while True:
            try:
                found = step()
            except Unreachable as error:
                if time.monotonic() >= min(end, self._leave):
                    raise
                if not told:
                    self._tell("unreachable", f"{error} Trying again until it answers.")
                told = True
                time.sleep(pause)
                pause = min(2 * pause, LONGEST)
                continue
            if told:
                self._tell("reached", "The server answers again.")
            return found

    def _beat(self) -> None:
        """Send heartbeats, also during training, and register again if the server has restarted."""
        while not self._ended.wait(INTERVAL / 2):
            before = self._fleet.activated
            with suppress(Failed):  # the main thread gets the same error and reports it
                try:
                    self._fleet.beat()
                except Restarted:
                    self._fleet.activate(before)


def _header(content: bytes) -> RequestHeader | None:
    try:
        return RequestHeader.read(split(content)[0])
    except BadFrame:
        return None
