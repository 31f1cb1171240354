"""Events of a federation and its log files: a JSON line and a text line for each event. No torch."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from protonorm.core.text import shortened, visible
from protonorm.files import make_folder, open_private

What = Literal[
    "started",  # the server starts or resumes; numbers: rounds, done, clients
    "round",  # a round begins; numbers: clients, needed
    "asked",  # a client was sent its order; numbers: bytes
    "away",  # a client cannot be reached or was lost; reported once until that changes
    "answered",  # a client's answer is accepted; numbers: bytes, seconds of training
    "delivered",  # a client was sent something outside of rounds, such as the message to keep; numbers: bytes
    "acknowledged",  # it has confirmed that; numbers: bytes
    "late",  # a client missed the deadline
    "refused",  # an answer is rejected; `why` is the guard's reason
    "compared",  # a client's contribution was compared with the others'; numbers: length, cosine
    "burned",  # a member of a secure sum dropped out, and the round yields nothing
    "suspect",  # likewise, and it is far from the others
    "waiting",  # a round is below its quorum and waits; numbers: answered, needed
    "aside",  # a client was late or refused too often, and is not waited for
    "back",  # a client that was set aside has answered well
    "members",  # others take part than in the round before, or by other terms
    "committed",  # a round is committed; numbers: replied, lost, seconds, bytes_up, bytes_down on the wire
    "evaluated",  # a round's evaluation is recorded; numbers: clients, and accuracies by name, 0 to 1
    "finished",  # all rounds are done; numbers: rounds
    "failed",  # the run has failed
]


Why = Literal[  # reasons for rejecting an answer
    "malformed", "unknown client", "identity", "agreement", "late", "round", "repeated", "declined", "content", "scale"
]
DECLINES = "it declines: "  # before a client's own reason
LARGEST = 2**24  # bytes of a log file before rotation; one old file is kept
LONGEST = 1000  # characters of a message
Level = Literal["info", "warning", "error"]


class Event(NamedTuple):
    """Event of a federation."""

    what: What
    sentence: str
    round: int = 0  # 0: not specific to a round
    client: int | None = None  # client id
    why: str = ""  # reason of a refusal
    numbers: Mapping[str, float] = {}
    digest: str = ""  # SHA-256 of the message that was sent or received


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event."""


class Log:
    """Log files of a folder; each line is a single write, so that several processes can append."""

    def __init__(self, folder: Path, name: str, show: Callable[[str], None] | None = None) -> None:
        make_folder(folder)
        self.machine, self.people = folder / f"{name}.jsonl", folder / f"{name}.log"
        self._show = show

    def write(self, event: str, text: str, level: Level = "info", **details: Any) -> None:
        """Append an event: a stable name, a sentence, and details for machines."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        message = shortened(text, LONGEST)  # may contain clients' text: limited to a line
        plain = {"time": now, "level": level, "event": event, "text": message, **details}
        line = f"{now[:10]} {now[11:19]} {level:7} {message}"
        _append(self.machine, json.dumps(plain, allow_nan=False, default=str))
        _append(self.people, line)
        if self._show:
            self._show(line)


def read_events(path: Path, last: int = 20) -> list[dict[str, Any]]:
    """Read the last events of a log, skipping lines truncated by a kill."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - last * 4 * LONGEST))
            lines = file.read().splitlines()[-last:]
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and {"time", "level", "event", "text"} <= event.keys():
            events.append(event)
    return events


def _append(path: Path, line: str) -> None:
    if path.exists() and path.stat().st_size > LARGEST:
        os.replace(path, path.with_name(f"{path.name}.1"))
    with open_private(path, "ab") as file:
        file.write(visible(line).encode() + b"\n")
