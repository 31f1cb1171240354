"""State of one call of a deployment's engine: which clients have answered, whom to ask again, and when it is over.

A call ends when every reachable client has answered or is lost; once the quorum is met, others have a grace period, and
no more than the deadline. Below the quorum it goes on without limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from protonorm.core.task import Lost, Order
from protonorm.deployment.messages import Answer

AGAIN = 2.0  # seconds between two attempts to reach a disconnected client
GRACE = 30.0  # least seconds that others have once the quorum is met
REPAIR = 30.0  # seconds before a client is asked again that was lost or whose answer was rejected
SLOW = "the round ended before it answered"  # reason of a client that was not waited for longer
GATHERING = 60.0  # seconds that a patient call waits for disconnected clients, if its deadline is not sooner


@dataclass
class Turn:
    """State of one client in a call."""

    order: Order
    request: bytes
    status: Literal["due", "asked", "away", "lost", "refused", "late"] = "due"
    at: float = 0.0  # if asked, the deadline of the answer; else the earliest time of the next request
    reason: str = ""  # reason for a missing answer


class Call:
    """State of a call; all times are seconds of one clock."""

    def __init__(
        self,
        turns: Sequence[Turn],
        quorum: Callable[[int], int],  # answers needed of so many clients
        begun: float,
        deadline: float,
        *,
        patient: bool,
        aside: Collection[int] = (),  # clients that are asked, but not waited for
        grace: float | None = None,
    ) -> None:
        self.turns = {turn.order.id: turn for turn in turns}
        self._quorum, self.deadline = quorum, deadline
        self.counted = self.turns.keys() - set(aside)  # clients that count for the quorum
        self.aside = set(aside)
        self.answers: dict[int, Answer] = {}
        self._begun, self._end, self._patient = begun, begun + deadline, patient
        self._grace, self._over = grace, self._end  # the grace period, and its end once the quorum is met
        self._gathered = begun + min(deadline, GATHERING)

    @property
    def needed(self) -> int:
        """Number of answers that the call needs."""
        return self._quorum(len(self.counted))

    def answer(self, id: int, answer: Answer, now: float) -> None:
        """Add an accepted answer; once the quorum is met, the grace period begins."""
        self.answers[id] = answer
        if len(self.answers) == self.needed:
            grace = max(GRACE, now - self._begun) if self._grace is None else self._grace
            self._over = min(self._end, now + grace)

    def with_status(self, *statuses: str) -> list[Turn]:
        """List the clients in one of these states that have not answered."""
        return [turn for id, turn in self.turns.items() if id not in self.answers and turn.status in statuses]

    def expire(self, now: float) -> list[Turn]:
        """Mark and return the clients whose deadline has passed."""
        late = [turn for turn in self.with_status("asked") if turn.at <= now]
        for turn in late:
            turn.status, turn.at = "late", now
            turn.reason = f"it had not replied after {self.deadline:g} seconds"
        return late

    def due(self, now: float) -> dict[int, Turn]:
        """Return the clients to ask now; refused and late clients only while the quorum is not met."""
        short = len(self.answers) < self.needed
        statuses = ("due", "away", "lost", *(("refused", "late") if short else ()))
        return {turn.order.id: turn for turn in self.with_status(*statuses) if turn.at <= now}

    def ask(self, turn: Turn, now: float) -> None:
        """Mark a client as asked."""
        self.counted |= {turn.order.id} - self.aside
        turn.status, turn.at, turn.reason = "asked", now + self.deadline, ""

    def miss(self, turn: Turn, status: Literal["away", "lost", "refused"], now: float, reason: str) -> None:
        """Mark a client as away, lost or refused, with the reason and the time of the next request."""
        pause = AGAIN if status == "away" else min(REPAIR, self.deadline)
        turn.status, turn.at, turn.reason = status, now + pause, reason

    def is_done(self, now: float) -> bool:
        """Return whether the quorum is met and no pending client is worth waiting for."""
        if len(self.answers) < self.needed:
            return False
        gathers = self._patient and now < self._gathered
        pending = self.with_status("asked", *(("away", "lost") if gathers else ()))
        over = max(self._over, self._gathered) if self._patient else self._over
        return now >= min(over, self._end) or all(turn.order.id in self.aside for turn in pending)

    def is_overdue(self, now: float) -> bool:
        """Return whether the deadline has passed below the quorum."""
        return now >= self._end and len(self.answers) < self.needed

    def end(self) -> list[Turn]:
        """Mark and return the clients that were waited for, and had not answered when the grace period was over."""
        late = [turn for turn in self.with_status("asked") if turn.order.id not in self.aside]
        for turn in late:
            turn.status, turn.reason = "late", SLOW
        return late

    def missed(self) -> dict[int, str]:
        """Return the clients that were late or refused, with the reason."""
        return {turn.order.id: turn.reason or SLOW for turn in self.with_status("asked", "late", "refused")}

    def waits_for(self, now: float) -> list[Turn]:
        """List the clients that block the call; empty while the pending answers can still meet the quorum in time."""
        over, asked, answered = now >= self._end, len(self.with_status("asked")), len(self.answers)
        if asked and answered + asked >= self.needed and (not over or answered >= self.needed):
            return []
        return self.with_status("away", "lost", "refused", "late", *(("asked",) if over else ()))

    def wake(self, now: float) -> float:
        """Return the time of the next action if no message arrives."""
        times = [turn.at for id, turn in self.turns.items() if id not in self.answers]
        times += [self._end, self._over, self._gathered]
        return min((time for time in times if time > now), default=now + AGAIN)

    def outcome(self, id: int) -> Answer | Lost:
        """Return a client's answer, or a Lost with the reason."""
        return self.answers.get(id) or Lost(id, self.turns[id].reason or SLOW)
