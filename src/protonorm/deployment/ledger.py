"""Ledger of a client's protected messages: what was spent of its owner's privacy budget, over all agreements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, ValidationError

from protonorm.core.training import Outgoing
from protonorm.core.types import Format, Positive
from protonorm.deployment.audit import read_trail
from protonorm.deployment.settings import Document
from protonorm.files import damaged, pretty, read_json, replace

LEDGER = "privacy.json"
TRAINING = ("train", "evaluate+train")  # kinds of requests that are answered by a message


class BudgetSpent(ValueError):
    """Error for a release beyond the owner's ceiling."""


class Release(Document):
    """Record of a protected message, kept before it leaves."""

    agreement: str  # SHA-256 of the federation's first agreement
    round: Annotated[int, Ge(1)]
    loss: Positive  # ρ of zCDP


class Masked(Document):
    """Record of a masked message, kept before it is masked."""

    agreement: str  # SHA-256 of the federation's first agreement
    round: Annotated[int, Ge(1)]
    update: str  # SHA-256 of what was masked; empty if it told of no samples


class Ledger(BaseModel):
    """All protected messages of a client, under every agreement: its samples are the same."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Format = 1
    releases: list[Release] = []
    masked: list[Masked] = []

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the ledger; raise ValueError if it is damaged, because what was spent must be known."""
        try:
            return cls.model_validate(read_json(path)) if path.exists() else cls()
        except ValidationError as error:
            raise damaged(path, error.errors()[0]["msg"]) from None

    @property
    def spent(self) -> float:
        """Privacy loss ρ of all releases."""
        return sum(one.loss for one in self.releases)

    def check(self, release: Release, protect: Outgoing) -> None:
        """Raise ValueError for a second release of a round, BudgetSpent for one beyond the owner's ceiling."""
        before = [one for one in self.releases if one.agreement == release.agreement]
        if any(one.round >= release.round for one in before):
            raise ValueError(f"It has sent its message of round {release.round} or a later one, and draws no other.")
        if reason := protect.refusal(self.spent + release.loss):
            raise BudgetSpent(reason)

    def use(self, path: Path, agreement: str, round: int, update: str) -> None:
        """Record on disk that a round is used; raise ValueError if it is already, or the update is an earlier one."""
        if any(each.agreement == agreement and each.round >= round for each in self.masked):
            raise ValueError(f"It has masked its message of round {round} or a later one, and sends no other.")
        if update and any(each.update == update for each in self.masked):
            raise ValueError("Its update is that of an earlier round, which is never sent again.")
        self.masked.append(Masked(agreement=agreement, round=round, update=update))
        replace(path, pretty(self.model_dump(mode="json")))

    def charge(self, path: Path, release: Release) -> None:
        """Record a release on disk."""
        self.releases.append(release)
        replace(path, pretty(self.model_dump(mode="json")))


def count_unprotected(trail: Path, *, once: bool = False) -> int:
    """Return how many messages a client has sent without noise, by its audit trail.

    A repeated answer has the same SHA-256 and counts once. In a secure sum the masked message counts, not the pledge
    before it. With `once`, the method sends a message in the first round of an agreement alone.
    """
    agreement, protected = "", set[int]()  # rounds whose next message has noise
    sent: dict[tuple[str, str], int] = {}  # rounds of messages without noise, by agreement and SHA-256
    known: set[str] = set()
    for line in read_trail(trail):
        event, round, kind, digest = (line.get(name) for name in ("event", "round", "kind", "digest"))
        if event == "confirmed":
            agreement = str(line.get("agreement", ""))
        elif event == "released" and isinstance(round, int):
            protected.add(round)
        elif event == "received" and kind == "members":  # the last answer of the round was a pledge
            sent = {key: each for key, each in sent.items() if key[0] != agreement or each != round}
        elif event == "sent" and kind in (*TRAINING, "mask") and isinstance(round, int) and digest not in known:
            known.add(str(digest))
            if round not in protected:
                sent[agreement, str(digest)] = round
            protected.discard(round)
    return len({agreement for agreement, _ in sent} if once else sent)


def not_covered(unprotected: int) -> str:
    """Return the sentence about messages that were sent without noise, before the owner asked for it."""
    if unprotected == 1:
        return "1 earlier message was sent without noise: this ε does not cover it."
    return f"{unprotected} earlier messages were sent without noise: this ε does not cover them."
