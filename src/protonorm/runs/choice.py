"""Which round of a run is reported, and when a run has lost its patience. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from protonorm.runs.schema import RoundRecord

WHY = {  # it is this round
    "validation": "it has the best mean validation accuracy",
    "test": "it has the best test accuracy, which is optimistic: there is no validation part",
    "last": "it is the last that was evaluated; there is none in which everybody was",
}


class Choice(NamedTuple):
    """The round that is reported, and how it was chosen."""

    record: RoundRecord
    by: Literal["validation", "test", "last"]  # the best validation accuracy, the best test accuracy, or the last round

    @property
    def why(self) -> str:
        """Say why it is this round."""
        return WHY[self.by]


def choose_round(rounds: Sequence[RoundRecord], rule: str) -> Choice | None:
    """Choose the round that is reported under a rule; a run that is not tested has validation accuracies alone."""
    everybody = [record for record in rounds if record.evaluated == "all"]
    tested = [record for record in everybody if record.rules.get(rule)]
    asked = tested or [record for record in everybody if not record.rules]
    validated = [(record, found.mean) for record in asked if (found := record.validation.get(rule))]
    if validated:
        return Choice(max(validated, key=lambda pair: pair[1])[0], "validation")
    if tested:
        return Choice(max(tested, key=lambda record: _pooled(record, rule)), "test")
    known = [record for record in rounds if record.rules.get(rule)]
    return Choice(known[-1], "last") if known else None


def has_stopped(rounds: Sequence[RoundRecord], rule: str, patience: int | None) -> bool:
    """Tell whether so many evaluations in a row had no better mean validation accuracy than the best before."""
    everybody = [record for record in rounds if record.evaluated == "all"]  # means over other clients tell nothing
    known = [found.mean for record in everybody or rounds if (found := record.validation.get(rule))]
    return patience is not None and bool(known) and len(known) - 1 - int(np.argmax(known)) >= patience


def _pooled(record: RoundRecord, rule: str) -> float:
    found = record.rules[rule]
    return found.pooled if found else 0.0
