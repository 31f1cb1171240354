"""Status of a federation: the status file, the observer that keeps it up to date, and summaries of it. No torch."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import threading
import time
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from annotated_types import Ge, Le
from pydantic import AllowInfNan, BaseModel, ConfigDict, ValidationError

from protonorm.core.text import shortened
from protonorm.core.types import Format
from protonorm.deployment.client_folder import ClientFolder, read_history
from protonorm.deployment.events import DECLINES, Event, Level, Log, Why, read_events
from protonorm.deployment.federation_folder import AGREEMENT, FederationFolder
from protonorm.deployment.process_lock import is_alive, is_locked, lock_owner, process_began
from protonorm.deployment.settings import ClientSettings, canonical, differing, listed
from protonorm.files import damaged, pretty, read_json, replace
from protonorm.runs.layout import INFO
from protonorm.runs.run import read_run

Whole = Annotated[int, Ge(0)]
Seconds = Annotated[float, Ge(0), AllowInfNan(False)]
Finite = Annotated[float, AllowInfNan(False)]

State = Literal["ready", "running", "waiting", "done", "stopped", "failed"]
Presence = Literal["unknown", "asked", "answered", "late", "refused", "absent"]

STATES: dict[State, str] = {
    "ready": "no run has begun",
    "running": "a round is on",
    "waiting": "a round waits for clients",
    "done": "all rounds are done",
    "stopped": "the run was interrupted, and can go on",
    "failed": "the run has failed",
}
PAUSE = 0.5  # seconds between two writes of the status for events of single clients
AGAIN, MOST_DENIALS = 60.0, 20  # seconds after which a denial is logged again, and different ones in that time
SAID = 300  # characters of a message in the status
WARNINGS = ("away", "late", "refused", "waiting", "aside", "suspect", "burned")
OF_CLIENTS = ("asked", "away", "answered", "delivered", "acknowledged", "late", "refused", "compared", "suspect")
EVENTS = 200  # events of the log that are searched
SHOWN = 5  # maximal number of problems shown


class ClientStatus(BaseModel):
    """Status of one client."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Whole
    name: str
    here: bool = False  # whether the client is connected
    state: Presence = "unknown"  # in the current round
    answered: Whole = 0  # last round with an accepted answer
    answers: Whole = 0  # accepted answers
    late: Whole = 0  # rounds in which the client missed the deadline
    refused: Whole = 0
    accuracy: Annotated[float, Ge(0), Le(1)] | None = None  # last one that its owner told, under the headline rule
    seen: str = ""  # time of its last message, connection or disconnection
    length: Finite | None = None  # of its last contribution, relative to the others', where the rule compares them
    cosine: Finite | None = None  # of its last contribution to the others
    suspect: Whole = 0  # rounds in which its contribution was far from the others
    said: str = ""  # why it was lost or refused, until its next accepted answer
    declined: str = ""  # reason of its last decline, until its next accepted answer


class Status(BaseModel):
    """Status of a federation; its counters continue when a run is resumed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Format = 1
    federation: str
    agreement: str  # SHA-256 of the agreement
    rounds: Whole  # R
    state: State = "ready"
    text: str = ""  # message about the state
    round: Whole = 0  # current round
    done: Whole = 0  # committed rounds
    needed: Whole = 0  # clients that must answer for the round to count
    seconds: Seconds = 0.0  # of all committed rounds
    last_seconds: Seconds = 0.0  # of the last committed round
    bytes_up: Whole = 0  # received from clients
    bytes_down: Whole = 0  # sent to clients
    refused: dict[str, Whole] = {}  # rejected answers, by reason
    denied: Whole = 0  # denied requests
    evaluated: Whole = 0  # last round with a recorded evaluation
    accuracies: dict[str, float] = {}  # of that round, by name, 0 to 1
    clients: list[ClientStatus] = []
    process: Whole = 0  # id of the server's process
    process_began: str = ""  # distinguishes it from a later process with the same id
    updated: str = ""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a status file; None if it does not exist."""
        if not path.exists():
            return None
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            raise damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def write(self, path: Path) -> None:
        """Write the status file with the current time."""
        self.updated = now()
        replace(path, pretty(self.model_dump(mode="json")))

    @property
    def state_now(self) -> State:
        """Current state: stopped if the process was killed before it could write so."""
        lives = is_alive(self.process, self.process_began)
        return "stopped" if self.state in ("running", "waiting") and not lives else self.state

    def count(self, *states: Presence) -> int:
        """Count the clients in one of these states."""
        return sum(client.state in states for client in self.clients)


def now() -> str:
    """Return the current time in UTC, ISO 8601."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def seconds_since(time: str) -> float | None:
    """Return the seconds since an ISO 8601 time; None if it cannot be parsed."""
    try:
        return (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return None


class StatusWriter:
    """Observer that writes each event to the logs and the status file; resumes the status of the same agreement."""

    def __init__(self, folder: FederationFolder, log: Log | None = None) -> None:
        self._folder, self.log = folder, log or Log(folder.log_folder, "server")
        terms = folder.agreement
        empty = Status(federation=folder.settings.name, agreement=terms.digest, rounds=terms.rounds)
        self.status = self._previous(terms.digest) or empty
        for why in get_args(Why):
            self.status.refused.setdefault(why, 0)
        self._lock = threading.Lock()
        self._written = float("-inf")
        self._denials: dict[str, float] = {}  # time of the last log entry by sentence
        self._changed = False

    def __call__(self, event: Event) -> None:
        """Record an event."""
        with self._lock:
            plain = event._asdict().items()
            details = {name: value for name, value in plain if value and name not in ("what", "sentence")}
            level: Level = "warning" if event.what in WARNINGS else "error" if event.what == "failed" else "info"
            if event.client is None:
                self._update(event)
            else:
                unknown = ClientStatus(id=event.client, name="unknown")
                client = next((client for client in self.status.clients if client.id == event.client), unknown)
                details |= {"client": event.client, "name": client.name}
                self._update_client(client, event)
            self.log.write(event.what, event.sentence, level, **details)
            self._changed = True
            if event.what not in OF_CLIENTS or time.monotonic() - self._written > PAUSE:
                self._write()

    def open(self) -> None:
        """Record that the server has started, with no client connected."""
        with self._lock:
            self.status.process, self.status.process_began = os.getpid(), process_began(os.getpid())
            self._add_new_clients()
            self._mark_absent()

    def update_presence(self, present: Collection[int]) -> None:
        """Record which clients are connected."""
        with self._lock:
            self._add_new_clients()
            for client in self.status.clients:
                connected = client.id in present
                if client.here != connected:
                    client.here, client.seen, self._changed = connected, now(), True
                    word = "connected" if connected else "disconnected"
                    self.log.write(word, f"Client {client.name} is {word}.", client=client.id, name=client.name)
            if self._changed:
                self._write()

    def deny(self, sentence: str) -> None:
        """Record a denied request or connection; the log is rate-limited, whatever strangers do."""
        with self._lock:
            self.status.denied += 1
            self._changed = True
            now = time.monotonic()
            self._denials = {text: at for text, at in self._denials.items() if now - at < AGAIN}
            if sentence not in self._denials and len(self._denials) < MOST_DENIALS:
                self._denials[sentence] = now
                self.log.write("denied", sentence, "warning")

    def close(self) -> None:
        """Record that the server has ended."""
        with self._lock:
            if self.status.state in ("running", "waiting"):
                self.status.state = "stopped"
            self.status.process, self.status.process_began = 0, ""
            self._mark_absent()

    def _update(self, event: Event) -> None:
        status, numbers = self.status, event.numbers
        status.text = shortened(event.sentence, SAID)
        match event.what:
            case "started":
                self._add_new_clients()
                status.state, status.done = "running", int(numbers.get("done", status.done))
                status.rounds = int(numbers.get("rounds", status.rounds))
                for client in status.clients:
                    client.state = "unknown"
            case "members":
                status.rounds = int(numbers.get("rounds", status.rounds))
            case "round":
                status.state, status.round, status.needed = "running", event.round, int(numbers.get("needed", 0))
            case "committed":
                status.state, status.done = "running", event.round
                status.last_seconds = float(numbers.get("seconds", 0.0))
                status.seconds += status.last_seconds
                status.bytes_up += int(numbers.get("bytes_up", 0))
                status.bytes_down += int(numbers.get("bytes_down", 0))
            case "evaluated":
                status.evaluated = event.round
                status.accuracies = {name: float(value) for name, value in numbers.items() if name != "clients"}
            case "finished":
                status.state, status.done = "done", status.rounds
            case "waiting" | "failed":
                status.state, status.needed = event.what, int(numbers.get("needed", status.needed))
                status.round = max(status.round, event.round)
                status.rounds = int(numbers.get("rounds", status.rounds))

    def _update_client(self, client: ClientStatus, event: Event) -> None:
        match event.what:
            case "asked":
                client.state = "asked"
            case "answered":
                client.state, client.answered, client.seen = "answered", max(client.answered, event.round), now()
                client.answers, client.said, client.declined = client.answers + 1, "", ""
                client.accuracy = event.numbers.get("accuracy", client.accuracy)
            case "refused":
                client.state, client.seen = "refused", now()
                if event.why == "declined":
                    client.declined = shortened(event.sentence.partition(DECLINES)[2], SAID)
                client.said = _problem(client, event.sentence)
                client.refused += 1
                self.status.refused[event.why] = self.status.refused.get(event.why, 0) + 1
            case "compared" | "suspect":
                client.length, client.cosine = event.numbers["length"], event.numbers["cosine"]
                if event.what == "suspect":
                    client.suspect, client.said = client.suspect + 1, shortened(event.sentence, SAID)
            case "late" | "away":
                client.state = "late" if event.what == "late" else "absent"
                client.said = _problem(client, event.sentence)
                client.late += event.what == "late"
            case "aside":
                client.said = _problem(client, event.sentence)

    def _add_new_clients(self) -> None:
        """Add the clients that have joined the roster since."""
        joined = self._folder.roster[len(self.status.clients) :]
        self.status.clients += [ClientStatus(id=member.id, name=member.name) for member in joined]
        self._changed = self._changed or bool(joined)

    def _mark_absent(self) -> None:
        for client in self.status.clients:
            client.here = False
        self._write()

    def _write(self) -> None:
        self.status.write(self._folder.status_file)
        self._written, self._changed = time.monotonic(), False

    def _previous(self, digest: str) -> Status | None:
        try:
            status = Status.read(self._folder.status_file)
        except (ValueError, OSError):
            return None  # the status only has counters, and the record does not depend on it
        names = [client.name for client in self._folder.roster]
        recorded = [client.name for client in status.clients] if status else []
        return status if status and status.agreement == digest and recorded == names[: len(recorded)] else None


def _problem(client: ClientStatus, sentence: str) -> str:
    """Return what is wrong with a client: a sentence, and why it declined before."""
    text = shortened(sentence, SAID)
    return text if not client.declined or DECLINES in sentence else f"{text} It declined before: {client.declined}"


def view_federation(folder: FederationFolder) -> dict[str, Any]:
    """Summarise the status of a federation."""
    agreed = read_json(folder.path / AGREEMENT)  # without the agreement itself, which needs torch
    rounds = agreed.get("rounds")
    empty = Status(federation=folder.settings.name, agreement="", rounds=rounds if isinstance(rounds, int) else 0)
    status = Status.read(folder.status_file) or empty
    recorded = {client.id: client for client in status.clients}
    clients = [recorded.get(client.id) or ClientStatus(id=client.id, name=client.name) for client in folder.roster]
    running, state = is_locked(folder.server_lock), status.state_now
    events = read_events(folder.log_folder / "server.jsonl", EVENTS)
    warnings = [event for event in events if event["level"] != "info"]
    terms = amended_terms(folder)
    unconfirmed = {
        name: each["round"] for each in terms if each["round"] <= status.done + 1 for name in each["missing"]
    }
    rows = []
    for client, member in zip(clients, folder.roster, strict=True):
        row = client.model_dump(mode="json") | {"here": client.here and running, "standing": folder.standing(member)}
        if not row["standing"] and (first := unconfirmed.get(client.name)):
            row["standing"] = "unconfirmed"
            row["said"] = f"It is not asked until its owner confirms the terms from round {first} on."
        rows.append(row)
    return {
        **status.model_dump(mode="json", exclude={"format", "clients", "process", "process_began", "state", "text"}),
        "folder": str(folder.path),
        "server": {"running": running, "process": lock_owner(folder.server_lock), "address": folder.settings.host},
        "state": state,
        "means": STATES[state],
        "text": status.text if state == status.state else "",
        "wanted": folder.wanted.exists(),
        "combine": str(agreed.get("combine", "mean")),
        "quorum": folder.settings.quorum,
        "deadline": folder.settings.deadline,
        "members": sum(member.active for member in folder.roster),
        "clients": rows,
        "terms": [each for each in terms if each["missing"] or each["round"] > status.done],
        **_accuracy(folder),
        "problems": [{name: str(event[name]) for name in ("time", "event", "text")} for event in warnings[-SHOWN:]],
    }


def amended_terms(folder: FederationFolder) -> list[dict[str, Any]]:
    """Summarise each amendment: its first round, what it changes, and which members have confirmed it."""
    files = [folder.path / AGREEMENT, *folder.amendment_files]
    plain = [read_json(file) for file in files]  # without the agreements themselves, which need torch
    digests = [hashlib.sha256(canonical(each)).hexdigest() for each in plain]
    places = {digest: place for place, digest in enumerate(digests)}
    members = [member for member in folder.roster if member.active]
    terms = []
    for place, (before, after) in enumerate(pairwise(plain), 1):
        confirmed = [member.name for member in members if places.get(member.confirmed, 0) >= place]
        missing = [member.name for member in members if member.name not in confirmed]
        round, changes = after["amends"]["round"], differing(after, before | {"amends": after["amends"]})
        text = (
            f"Terms from round {round} on, {', '.join(changes)}: {len(confirmed)} of {len(members)} have confirmed them"
        )
        text += f"; not yet: {listed(missing)}." if missing else "."
        terms.append({"round": round, "changes": changes, "confirmed": confirmed, "missing": missing, "text": text})
    return terms


def view_client(folder: ClientFolder) -> dict[str, Any]:
    """Summarise the status of a client, as known on its owner's machine."""
    settings, refused = folder.settings, ""
    try:
        settings = folder.within_policy
    except ValueError as error:
        refused = str(error)
    events = read_events(folder.log_folder / "client.jsonl", EVENTS)
    return {
        "name": settings.name,
        "folder": str(folder.path),
        "joined": folder.joined,
        "left": folder.left.exists(),
        "running": is_locked(folder.lock),
        "process": lock_owner(folder.lock),
        "data": settings.data,
        "model": settings.model,
        "allowed": settings.allowed,
        "policy": refused,
        "privacy": _privacy(folder, settings),
        "state_missing": folder.missing_state() if folder.joined else "",
        "offered": folder.offer_file.is_file(),
        "history": _own_history(folder) if folder.joined else [],
        "events": [{name: event[name] for name in ("time", "level", "event", "text")} for event in events[-SHOWN:]],
    }


def _privacy(folder: ClientFolder, settings: ClientSettings) -> dict[str, Any] | None:
    """Return ε and δ of what a client has sent, and how many messages they do not cover; None without noise."""
    from protonorm.deployment.ledger import LEDGER, Ledger

    if not settings.protect.private:
        return None
    unprotected = folder.count_unprotected(settings.protect)
    return {**settings.protect.told(Ledger.read(folder.states / LEDGER).spent), "unprotected": unprotected}


def _own_history(folder: ClientFolder) -> list[dict[str, Any]]:
    """List a client's own test accuracy under each rule and its training loss by round, beside its training alone."""
    together, alone = (read_history(folder.history_folder / name) for name in ("", "alone"))

    def accuracies(line: dict[str, Any]) -> dict[str, float]:
        part = line.get("test") or line.get("validation") or {"rules": {}}
        return {rule: values["accuracy"] for rule, values in part["rules"].items()}

    def row(round: int) -> dict[str, Any]:
        line, alone_line = together.get(round, {}), alone.get(round, {})
        values = {"round": round, "rule": line.get("rule"), "loss": line.get("metrics", {}).get("loss")}
        return values | {"accuracy": accuracies(line), "alone": accuracies(alone_line).get("logits")}

    return [row(round) for round in sorted({*together, *alone})]


def _accuracy(folder: FederationFolder) -> dict[str, Any]:
    """Read the accuracy of each evaluated round from the record, under the method's headline rule."""
    if not (folder.run_folder / INFO).exists():
        return {"rule": None, "history": []}
    try:
        run = read_run(folder.run_folder)
    except (ValueError, OSError) as error:
        return {"rule": None, "history": [], "record": str(error)}
    rule = run.info.headline
    evaluations = [(record.round, record.rules.get(rule), record.validation.get(rule)) for record in run.rounds]
    names = ("round", "test", "pooled", "validation")
    rows = [(round, test and test.mean, test and test.pooled, own and own.mean) for round, test, own in evaluations]
    return {"rule": rule, "history": [dict(zip(names, row, strict=True)) for row in rows if row[1:] != (None,) * 3]}
