"""Audit trail: append-only JSON lines, each with the SHA-256 of the line before it, on each side of a federation.

A line has a number, a time, an event, details, `before` (the hash of the line before) and `hash` (SHA-256 of all of the
line but itself, as canonical JSON). A changed, removed or moved line breaks the chain; lines removed at the end are
noticed by whoever has noted the number and hash of a later one. Does not need torch.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from filelock import FileLock

from protonorm.core.text import shortened
from protonorm.deployment.events import Event
from protonorm.deployment.settings import canonical
from protonorm.files import PRIVATE_FILE, explaining_full_disk, open_private

FILE: Final = "audit.jsonl"
START: Final = "0" * 64  # hash before the first line
LONGEST = 500  # characters of a text in a line
LARGEST = 2**16  # bytes of a line
HOURLY = {"denied": 100, "connected": 1000}  # lines an hour of events that strangers and clients cause …
OTHERS = 20_000  # … and of all other events that a message causes
EXCHANGED = {"asked": "asked", "answered": "answered", "delivered": "asked", "acknowledged": "answered"}
RECORDED = (*EXCHANGED, "started", "late", "away", "refused", "committed", "burned", "finished", "failed")
OWN = ("number", "time", "event", "before", "hash")  # names of a line that are no details


class Trail:
    """Audit trail of a folder; several processes may append to it."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        on_repair: Callable[[str], None] = lambda sentence: None,  # receives a sentence about a line that was cut
    ) -> None:
        self.path, self._clock, self._on_repair = folder / FILE, clock, on_repair
        self._lock = FileLock(folder / f"{FILE}.lock", mode=PRIVATE_FILE)
        self._hour, self._written, self._unlisted = 0, Counter[str](), Counter[str]()

    def write(self, event: str, **details: Any) -> None:
        """Append a line; empty details are left out."""
        texts = {
            name: shortened(value, LONGEST) if isinstance(value, str) else value for name, value in details.items()
        }
        now = dt.datetime.fromtimestamp(self._clock(), dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        plain = {name: value for name, value in texts.items() if value not in ("", None, {}, [])}
        with self._lock, explaining_full_disk(self.path), open_private(self.path, "ab+") as file:
            number, before, size = _last(file)
            if size != file.seek(0, os.SEEK_END):  # a line was cut short by a kill
                file.truncate(size)
                number, before = _append(file, number, before, now, "repaired", {})
                self._on_repair(
                    f"The last line of {self.path.name} was cut short, by a kill or a full disk: it is removed, and "
                    f"line {number} says so. What that line told is lost."
                )
            _append(file, number, before, now, event, plain)

    def write_limited(self, event: str, **details: Any) -> None:
        """Append a line that a message causes, or count it in a later one if there were too many this hour."""
        hour = int(self._clock() // 3600)
        if hour != self._hour:
            self._hour, self._written = hour, Counter()
        if self._written[event] >= HOURLY.get(event, OTHERS):
            self._unlisted[event] += 1
            return
        self._written[event] += 1
        self.write(event, **details, unlisted=self._unlisted.pop(event, None))


class ServerTrail:
    """Observer that records what a server's messages cause: connections, requests, answers, and what was refused."""

    def __init__(self, trail: Trail, name: Callable[[int], str] = str) -> None:
        self._trail, self._name = trail, name
        self._connections: dict[int, tuple[str, str, str]] = {}  # by client: address, version, certificate
        self._denied: tuple[int, set[str]] = 0, set()

    def __call__(self, event: Event) -> None:
        """Record an event of the round loop."""
        if event.what in RECORDED:
            details: dict[str, Any] = {"round": event.round or None, "digest": event.digest, "why": event.why}
            details |= {} if event.client is None else {"client": event.client, "name": self._name(event.client)}
            details |= {name: event.numbers[name] for name in ("bytes", "replied", "lost") if name in event.numbers}
            text = "" if event.what in EXCHANGED else event.sentence
            self._trail.write_limited(EXCHANGED.get(event.what, event.what), **details, text=text)

    def record_connection(self, client: int, address: str, version: str, certificate: str) -> None:
        """Record a client's connection, if it is not like the one before."""
        if self._connections.get(client) != (address, version, certificate):
            self._connections[client] = address, version, certificate
            details = {"address": address, "version": version, "certificate": certificate}
            self._trail.write_limited("connected", client=client, name=self._name(client), **details)

    def deny(self, sentence: str) -> None:
        """Record a denied request or connection; the same one once a minute."""
        minute = int(time.monotonic() // 60)
        if self._denied[0] != minute or len(self._denied[1]) > HOURLY["denied"]:
            self._denied = minute, set()
        if sentence not in self._denied[1]:
            self._denied[1].add(sentence)
            self._trail.write_limited("denied", text=sentence)


class Verified(NamedTuple):
    """Lines of a trail that can be read, and what is wrong with it."""

    lines: list[dict[str, Any]]
    problems: list[str]
    head: str  # hash of the last line


def verify(path: Path, noted: str = "") -> Verified:
    """Verify a trail: each line that was changed, removed or moved is named; `noted` is a hash that must occur."""
    lines: list[dict[str, Any]] = []
    problems: list[str] = []
    before: str | None = START
    expected = 1
    for row, (line, problem) in enumerate(_lines(path), 1):
        if problem:
            problems.append(f"Line {row} {problem}.")
        elif line["number"] != expected:
            last = line["number"] - 1
            missing = f"{f'line {last} is' if last == expected else f'lines {expected} to {last} are'} missing"
            moved = f"it has the number {line['number']} and follows on {expected - 1}"
            problems.append(f"Line {row} is not in its place: {missing if line['number'] > expected else moved}.")
        elif before is not None and line["before"] != before:
            problems.append(f"Line {row} does not follow on the line before it: one of them was changed or replaced.")
        number = line.get("number")
        expected = (number if type(number) is int and not problem else expected) + 1
        before = line.get("hash")
        lines.append(line)
    if noted and noted not in {line.get("hash") for line in lines}:
        problems.append(f"No line has the noted hash {shortened(noted, 64)}: lines were removed or replaced.")
    return Verified(lines, problems, before or "")


def read_trail(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a trail that can be read, without verifying the chain."""
    return (line for line, _ in _lines(path) if line)


def details(line: Mapping[str, Any]) -> str:
    """Format the details of a line."""
    return ", ".join(f"{name} {value}" for name, value in line.items() if name not in OWN)


def fingerprints(changed: Mapping[str, Any]) -> dict[str, str]:
    """Return short forms of a key and a certificate for a line of the trail."""
    from protonorm.deployment.keys import certificate_fingerprint, key_fingerprint

    forms = {"public_key": key_fingerprint, "certificate": certificate_fingerprint}
    return {name: make(changed[name]) for name, make in forms.items() if changed.get(name)}


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each line, and what is wrong with it by itself."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while content := file.readline(LARGEST):
            try:
                line = json.loads(content)
                rest = {name: value for name, value in line.items() if name != "hash"}
                as_written = type(line["number"]) is int and content == _written(line)
                sound = as_written and isinstance(line["before"], str) and line["hash"] == _hash(rest)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                yield {}, "was changed or cut short: it is not as it was written"
                continue
            yield line, "" if sound else "was changed after it was written"


def _append(file: Any, number: int, before: str, now: str, event: str, plain: Mapping[str, Any]) -> tuple[int, str]:
    line = {"number": number + 1, "time": now, "event": event, **plain, "before": before}
    line["hash"] = _hash(line)
    file.write(_written(line))
    return number + 1, str(line["hash"])


def _written(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def _hash(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(line)).hexdigest()


def _last(file: Any) -> tuple[int, str, int]:
    """Return number and hash of the last whole line, and where it ends."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - 2 * LARGEST)
    file.seek(start)
    content = file.read()
    complete = content[: content.rfind(b"\n") + 1]
    for line in reversed(complete.splitlines()):
        try:
            plain = json.loads(line)
            return int(plain["number"]), str(plain["hash"]), start + len(complete)
        except (ValueError, KeyError, TypeError):
            continue  # a line that was changed; the verification names it
    return 0, START, start + len(complete)
