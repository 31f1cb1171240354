"""Selection of the reported round, and early stopping. Does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from protonorm.runs.schema import PendingRound, RoundRecord, RunInfo

WHY = {
    "validation": "it has the best mean validation accuracy",
    "test": "it has the best test accuracy, which is optimistic: there is no validation part",
    "last": "it is the last that was evaluated, and no round was evaluated by all clients",
}


class Choice(NamedTuple):
    """Reported round and the criterion that selected it."""

    record: RoundRecord
    by: Literal["validation", "test", "last"]  # best validation accuracy, best test accuracy, or last round

    @property
    def why(self) -> str:
        """Reason for the choice, as a clause."""
        return WHY[self.by]


def choose_round(rounds: Sequence[RoundRecord], rule: str) -> Choice | None:
    """Select the round to report under a rule; a run without tests has only validation accuracies."""
    tested_rounds = [(record, test) for record in rounds if (test := record.rules.get(rule))]
    tested = [(record, test) for record, test in tested_rounds if record.evaluated == "all"]
    untested = [record for record in rounds if record.evaluated == "all" and not record.rules]
    candidates = [record for record, _ in tested] or untested
    validated = [(record, part.mean) for record in candidates if (part := record.validation.get(rule))]
    if validated:
        return Choice(max(validated, key=lambda pair: pair[1])[0], "validation")
    if tested:
        return Choice(max(tested, key=lambda pair: pair[1].pooled)[0], "test")
    return Choice(tested_rounds[-1][0], "last") if tested_rounds else None


@dataclass
class Best:
    """Running maximum: the first round with the highest value, and the number of values since."""

    round: int = 0  # 0: no value yet
    since: int = 0
    value: float = -1.0

    def add(self, round: int, value: float) -> None:
        """Add the value of a round."""
        if value > self.value:
            self.round, self.since, self.value = round, 0, value
        else:
            self.since += 1


class Standing:
    """Incremental summary of a run's rounds: the best round and early stopping."""

    def __init__(self, info: RunInfo) -> None:
        self._rule, self._patience = info.headline, info.early_stopping
        self._last_round, self._complete = info.last_round, 0  # consecutive rounds with replies of all clients
        self._updated = info.updated  # only later rounds count for `last_round`
        # In a run that evaluates all clients periodically, early stopping ignores the other rounds from the start.
        self._has_all = getattr(info.experiment, "evaluate_all_every", None) is not None
        self._has_tested = False
        self._tested, self._untested = Best(), Best()  # rounds that evaluate all clients, with and without tests
        self._all, self._any = Best(), Best()  # rounds that evaluate all clients, or any client

    @classmethod
    def after(cls, info: RunInfo, rounds: Sequence[RoundRecord]) -> Self:
        """Build the summary of the given rounds."""
        standing = cls(info)
        for record in rounds:
            standing.add(record)
        return standing

    def add(self, record: RoundRecord) -> None:
        """Add a round."""
        self._complete = self._complete + 1 if self._counts(record) else 0
        everybody, validated = record.evaluated == "all", record.validation.get(self._rule)
        tested = everybody and record.rules.get(self._rule) is not None
        self._has_tested |= tested
        self._has_all |= everybody
        if validated is None:
            return
        if tested or (everybody and not record.rules):
            (self._tested if tested else self._untested).add(record.round, validated.mean)
        for best in (self._any, self._all) if everybody else (self._any,):
            best.add(record.round, validated.mean)

    @property
    def chosen(self) -> int:
        """Best round so far by validation accuracy; 0 if there is none."""
        return (self._tested if self._has_tested else self._untested).round

    def finished(self, pending: RoundRecord | PendingRound | None = None) -> bool:
        """Return whether the method has done all that it does, perhaps by a round that is not evaluated yet."""
        complete = self._complete + 1 if pending and self._counts(pending) else self._complete
        return self._last_round is not None and complete >= self._last_round

    @property
    def stopped(self) -> bool:
        """Whether mean validation accuracy has not improved for `early_stopping` evaluations."""
        best = self._all if self._has_all else self._any
        return self._patience is not None and best.round > 0 and best.since >= self._patience

    def _counts(self, record: RoundRecord | PendingRound) -> bool:
        """Return whether all clients replied in a round, after the last update."""
        return record.round > self._updated and record.cohort == "all" and not record.lost
