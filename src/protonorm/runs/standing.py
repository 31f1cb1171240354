"""How a run stands after each round: which round is the best so far, and whether its patience is lost.

The answers are those of `choose_round` and `has_stopped`, but no round is looked at twice: the last of thousands costs
what the first did. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from protonorm.runs.schema import RoundRecord, RunInfo


class Best:
    """The first of the highest values so far, and how many came after it."""

    def __init__(self) -> None:
        self.round = 0  # 0: there is no value yet
        self.since = 0
        self._value = -1.0

    def add(self, round: int, value: float) -> None:
        """Take in the value of a round."""
        if value > self._value:
            self.round, self.since, self._value = round, 0, value
        else:
            self.since += 1


class Standing:
    """What is known of a run's rounds so far, in a few numbers."""

    def __init__(self, info: RunInfo) -> None:
        self._rule, self._patience, self._mixed = info.headline, info.early_stopping, evaluates_all_seldom(info)
        self.rounds = 0
        self._has_tested = self._has_all = False
        self._tested, self._untested = Best(), Best()  # rounds in which everybody was evaluated, with and without tests
        self._all, self._any = Best(), Best()  # rounds in which everybody, or anybody, was evaluated

    @classmethod
    def after(cls, info: RunInfo, rounds: Sequence[RoundRecord]) -> Self:
        """Give the standing after some rounds."""
        found = cls(info)
        for record in rounds:
            found.add(record)
        return found

    def add(self, record: RoundRecord) -> None:
        """Take in a round."""
        self.rounds += 1
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
        """Give the best round so far by validation; 0 if there is none."""
        return (self._tested if self._has_tested else self._untested).round

    @property
    def stopped(self) -> bool:
        """Tell whether so many evaluations in a row had no better mean validation accuracy than the best before."""
        best = self._all if self._has_all or self._mixed else self._any
        return self._patience is not None and best.round > 0 and best.since >= self._patience


def evaluates_all_seldom(info: RunInfo) -> bool:
    """Tell whether everybody is evaluated now and then, and the cohort in the other rounds."""
    return getattr(info.experiment, "evaluate_all_every", None) is not None


def counted_rounds(info: RunInfo, rounds: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """Leave out rounds that early stopping does not count: those of a cohort, if everybody is evaluated at times."""
    return [record for record in rounds if record.evaluated == "all"] if evaluates_all_seldom(info) else rounds
