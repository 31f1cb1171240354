"""Who follows a federation: each event becomes a line of the logs and a change of the status file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from typing import get_args

from protonorm.core.types import shortened
from protonorm.deployment.events import Event
from protonorm.deployment.folder import FederationFolder
from protonorm.deployment.guard import Why
from protonorm.deployment.holding import process_began
from protonorm.deployment.log import Level, Log
from protonorm.deployment.status import ClientStatus, Status, now

PAUSE = 0.5  # seconds between two writings of the status that single clients cause
AGAIN = 60.0  # seconds after which the same denial is logged again
SAID = 300  # characters of a sentence in the status
LEVELS: dict[str, Level] = {
    "away": "warning",
    "late": "warning",
    "refused": "warning",
    "waiting": "warning",
    "failed": "error",
}
OF_CLIENTS = ("asked", "away", "answered", "late", "refused")


class Board:
    """An observer; what the status said before goes on, if it was of the same agreement and clients."""

    def __init__(self, folder: FederationFolder, log: Log | None = None) -> None:
        self._folder, self.log = folder, log or Log(folder.log_folder, "server")
        terms = folder.agreement
        self.status = self._before(terms.digest) or Status(
            federation=folder.settings.name, agreement=terms.digest, rounds=terms.rounds
        )
        for why in get_args(Why):
            self.status.refused.setdefault(why, 0)
        self._lock = threading.Lock()
        self._written = float("-inf")
        self._denials: dict[str, float] = {}  # when each was logged
        self._changed = False

    def __call__(self, event: Event) -> None:
        """Take note of what happened."""
        with self._lock:
            details = {name: value for name, value in event._asdict().items() if value}
            details = {name: value for name, value in details.items() if name not in ("what", "sentence")}
            if event.client is None:
                self._take(event)
            else:
                one = self._client(event.client)
                details |= {"client": event.client, "name": one.name}
                self._take_client(one, event)
            self.log.write(event.what, event.sentence, LEVELS.get(event.what, "info"), **details)
            self._changed = True
            if event.what not in OF_CLIENTS or time.monotonic() - self._written > PAUSE:
                self._write()

    def open(self) -> None:
        """Take note that the server is there; nobody is connected yet."""
        with self._lock:
            self.status.process, self.status.process_began = os.getpid(), process_began(os.getpid())
            self._meet()
            self._absent()

    def attend(self, present: Collection[int]) -> None:
        """Take note of who is connected."""
        with self._lock:
            self._meet()
            for one in self.status.clients:
                here = one.id in present
                if one.here != here:
                    one.here, self._changed = here, True
                    one.seen = now()
                    word = "connected" if here else "disconnected"
                    self.log.write(word, f"Client {one.name} is {word}.", client=one.id, name=one.name)
            if self._changed:
                self._write()

    def deny(self, sentence: str) -> None:
        """Take note of somebody who was not let in; the same again and again is logged now and then alone."""
        with self._lock:
            self.status.denied += 1
            self._changed = True
            if time.monotonic() - self._denials.get(sentence, float("-inf")) > AGAIN:
                self._denials = {sentence: time.monotonic(), **dict(list(self._denials.items())[:100])}
                self.log.write("denied", f"Somebody was not let in: {sentence}", "warning")

    def close(self) -> None:
        """Take note that the server ends."""
        with self._lock:
            if self.status.state in ("running", "waiting"):
                self.status.state = "stopped"
            self.status.process, self.status.process_began = 0, ""
            self._absent()

    def _take(self, event: Event) -> None:
        status, numbers = self.status, event.numbers
        status.text = shortened(event.sentence, SAID)
        if event.what == "started":
            self._meet()
            status.state, status.done = "running", int(numbers.get("done", status.done))
            for one in status.clients:
                one.state = "unknown"
        elif event.what == "round":
            status.state, status.round = "running", event.round
            status.needed = int(numbers.get("needed", 0))
        elif event.what == "waiting":
            status.state = "waiting"
        elif event.what == "committed":
            status.state, status.done = "running", event.round
            status.last_seconds = float(numbers.get("seconds", 0.0))
            status.seconds += status.last_seconds
            status.bytes_up += int(numbers.get("bytes_up", 0))
            status.bytes_down += int(numbers.get("bytes_down", 0))
        elif event.what == "evaluated":
            status.evaluated = event.round
            status.accuracies = {name: float(value) for name, value in numbers.items() if name != "clients"}
        elif event.what == "finished":
            status.state, status.done = "done", status.rounds
        elif event.what == "failed":
            status.state = "failed"

    def _take_client(self, one: ClientStatus, event: Event) -> None:
        if event.what == "asked":
            one.state = "asked"
        elif event.what == "answered":
            one.state, one.answered, one.seen = "answered", max(one.answered, event.round), now()
            one.answers, one.said = one.answers + 1, ""
        elif event.what == "refused":
            one.state, one.seen, one.said = "refused", now(), shortened(event.sentence, SAID)
            one.refused += 1
            self.status.refused[event.why] = self.status.refused.get(event.why, 0) + 1
        elif event.what in ("late", "away"):
            one.state, one.said = "late" if event.what == "late" else "absent", shortened(event.sentence, SAID)
            one.late += event.what == "late"

    def _client(self, id: int) -> ClientStatus:
        """Find a client; a number that nobody has is a client without a name."""
        return next((one for one in self.status.clients if one.id == id), ClientStatus(id=id, name="unknown"))

    def _meet(self) -> None:
        """Take clients in that were added since."""
        new = self._folder.roster[len(self.status.clients) :]
        self.status.clients += [ClientStatus(id=one.id, name=one.name) for one in new]
        self._changed = self._changed or bool(new)

    def _absent(self) -> None:
        for one in self.status.clients:
            one.here = False
        self._write()

    def _write(self) -> None:
        self.status.write(self._folder.status_file)
        self._written, self._changed = time.monotonic(), False

    def _before(self, digest: str) -> Status | None:
        try:
            found = Status.read(self._folder.status_file)
        except (ValueError, OSError):
            return None  # it holds figures alone; the record is elsewhere
        names = [one.name for one in self._folder.roster]
        known = [one.name for one in found.clients] if found else []
        return found if found and found.agreement == digest and known == names[: len(known)] else None
