"""One call to clients: who was asked, who has answered, whom to ask again, and when it has what it needs.

Who is away is asked again as soon as it is back. A call ends when everybody who could be asked has answered or is lost,
and, after the deadline, as soon as there is a quorum. Below the quorum it waits, however long that takes, and asks
those again who were late, lost or refused: an answer that has been admitted is kept meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protonorm.core.task import Lost, Order
from protonorm.deployment.messages import Answer

AGAIN = 2.0  # seconds after which it is tried again to reach a client that is away
REPAIR = 30.0  # seconds that a client has to recover after it was lost on the way, or its answer refused
GATHERING = 60.0  # seconds that a patient call waits for those who are away, if its deadline is not sooner


@dataclass
class Turn:
    """One client in a call: how it stands, and when that is looked at again."""

    order: Order
    request: bytes
    stands: Literal["due", "asked", "away", "lost", "refused", "late"] = "due"
    at: float = 0.0  # when it becomes late if it was asked; when it may be asked again if not
    reason: str = ""  # why there is no answer


class Call:
    """What is known of a call; all times are seconds of one clock."""

    def __init__(self, turns: Sequence[Turn], needed: int, begun: float, deadline: float, *, patient: bool) -> None:
        self.turns = {turn.order.id: turn for turn in turns}
        self.needed, self.deadline = needed, deadline
        self.answers: dict[int, Answer] = {}
        self._end, self._patient = begun + deadline, patient
        self._gathered = begun + min(deadline, GATHERING)

    def standing(self, *ways: str) -> list[Turn]:
        """List those who stand in one of these ways and have not answered."""
        return [turn for id, turn in self.turns.items() if id not in self.answers and turn.stands in ways]

    def expire(self, now: float) -> list[Turn]:
        """Note who is late now."""
        late = [turn for turn in self.standing("asked") if turn.at <= now]
        for turn in late:
            turn.stands, turn.at = "late", now
            turn.reason = f"it had not replied after {self.deadline:g} seconds"
        return late

    def due(self, now: float) -> dict[int, Turn]:
        """Find whom to ask: all at first, later those who may be back, and who failed if they are needed."""
        short = len(self.answers) < self.needed
        ways = ("due", "away", "lost", *(("refused", "late") if short else ()))
        return {turn.order.id: turn for turn in self.standing(*ways) if turn.at <= now}

    def ask(self, turn: Turn, now: float) -> None:
        """Note that a client was sent its order."""
        turn.stands, turn.at, turn.reason = "asked", now + self.deadline, ""

    def miss(self, turn: Turn, stands: Literal["away", "lost", "refused"], now: float, reason: str) -> None:
        """Note why a client does not answer for now."""
        pause = AGAIN if stands == "away" else min(REPAIR, self.deadline)
        turn.stands, turn.at, turn.reason = stands, now + pause, reason

    def is_done(self, now: float) -> bool:
        """Tell whether the call has what it needs, and nobody is worth waiting for any longer."""
        if len(self.answers) < self.needed:
            return False
        gathers = self._patient and now < self._gathered
        return now >= self._end or not self.standing("asked", *(("away", "lost") if gathers else ()))

    def waits_for(self, now: float) -> list[Turn]:
        """List those without whom the call cannot go on for now; nobody if it is on its way."""
        over, asked, answered = now >= self._end, len(self.standing("asked")), len(self.answers)
        if asked and answered + asked >= self.needed and (not over or answered >= self.needed):
            return []
        return self.standing("away", "lost", "refused", "late", *(("asked",) if over else ()))

    def wake(self, now: float) -> float:
        """Find the next time at which something is to be done, if nothing arrives."""
        times = [turn.at for id, turn in self.turns.items() if id not in self.answers]
        return min(time for time in [*times, self._end, self._gathered] if time > now)

    def outcome(self, id: int) -> Answer | Lost:
        """Give a client's answer, or why there is none."""
        return self.answers.get(id) or Lost(id, self.turns[id].reason or "the round ended before it answered")
