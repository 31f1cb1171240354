"""How a federation stands, in one small file that the server's process writes and everybody else reads."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge
from pydantic import AllowInfNan, BaseModel, ConfigDict, ValidationError

from protonorm.deployment.holding import is_alive
from protonorm.files import damaged, pretty, read_json, replace

Whole = Annotated[int, Ge(0)]
Seconds = Annotated[float, Ge(0), AllowInfNan(False)]

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


class ClientStatus(BaseModel):
    """How one client stands."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Whole
    name: str
    here: bool = False  # whether it is connected
    state: Presence = "unknown"  # in the round that is on
    answered: Whole = 0  # the last round that it answered in
    answers: Whole = 0  # all that counted
    late: Whole = 0  # rounds that it was lost for
    refused: Whole = 0  # answers that did not count
    seen: str = ""  # when something came from it last
    said: str = ""  # why it was lost or refused, until it answers again


class Status(BaseModel):
    """How a federation stands; figures go on when a run is resumed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1] = 1
    federation: str
    agreement: str  # SHA-256 of the terms
    rounds: Whole  # R
    state: State = "ready"
    text: str = ""  # a sentence about the state
    round: Whole = 0  # the one that is on
    done: Whole = 0  # rounds that are committed
    needed: Whole = 0  # clients that must answer for the round to count
    seconds: Seconds = 0.0  # of all committed rounds
    last_seconds: Seconds = 0.0  # of the last one
    bytes_up: Whole = 0  # tensors that clients sent
    bytes_down: Whole = 0  # tensors that clients were sent
    refused: dict[str, Whole] = {}  # answers that did not count, by why
    denied: Whole = 0  # requests of those who were not let in
    evaluated: Whole = 0  # the last round whose evaluation is on record
    accuracies: dict[str, float] = {}  # of that round, by name, 0 to 1
    clients: list[ClientStatus] = []
    process: Whole = 0  # that runs the rounds
    process_began: str = ""  # so that another process of its number is not taken for it
    updated: str = ""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read how things stand; None if nothing has begun."""
        if not path.exists():
            return None
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            raise damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def write(self, path: Path) -> None:
        """Write it down, and when."""
        self.updated = now()
        replace(path, pretty(self.model_dump(mode="json")))

    @property
    def state_now(self) -> State:
        """Give the state as it is now: a process that was killed could not write that it ended."""
        lives = is_alive(self.process, self.process_began)
        return "stopped" if self.state in ("running", "waiting") and not lives else self.state

    def count(self, *states: Presence) -> int:
        """Count the clients of some states."""
        return sum(one.state in states for one in self.clients)


def now() -> str:
    """Say what time it is, in UTC."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def seconds_since(time: str) -> float | None:
    """Count the seconds since a time that was written down; None if there is none."""
    try:
        return (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return None
