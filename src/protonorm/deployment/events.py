"""What happens in a federation, as it happens: status, logs and metrics are made of these. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

What = Literal[
    "started",  # the server begins or goes on; numbers: rounds, done, clients
    "round",  # a round begins; numbers: clients, needed
    "asked",  # a client was sent its order; numbers: bytes
    "away",  # a client cannot be reached, or was lost on the way; told once until that changes
    "answered",  # a client's answer counts; numbers: bytes, seconds that its training took
    "late",  # a client has not answered in time
    "refused",  # an answer does not count; `why` is the guard's word for it
    "waiting",  # a round is below its quorum and waits; numbers: answered, needed
    "committed",  # a round is final; numbers: replied, lost, seconds, bytes_up, bytes_down as they went over the wire
    "evaluated",  # a round's evaluation is on record; numbers: clients, and accuracies by name, 0 to 1
    "finished",  # all rounds are done; numbers: rounds
    "failed",  # the server gives up, and why
]


class Event(NamedTuple):
    """One thing that happened."""

    what: What
    sentence: str  # for people
    round: int = 0  # 0: it belongs to no round
    client: int | None = None  # its number
    why: str = ""  # of a refusal, one word
    numbers: Mapping[str, float] = {}


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""


def tell_all(*observers: Observer) -> Observer:
    """Tell several of each event, in this order."""

    def tell(event: Event) -> None:
        for one in observers:
            one(event)

    return tell
