"""The rows of a comparison: what stands in them. Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from protonorm.analysis.contrasts import Contrast
from protonorm.analysis.statistics import Interval
from protonorm.runs.choice import Choice
from protonorm.runs.run import Summary
from protonorm.runs.schema import Accuracy


class Reported(NamedTuple):
    """A run under one rule: its accuracy in the round that is reported, and what lies beside it."""

    seed: int
    choice: Choice | None  # the reported round; None if the headline rule does not exist yet
    chosen: Accuracy | None  # None for a rule that did not exist in that round
    beside: Summary


COLUMNS: dict[str, tuple[str, Callable[[Reported], float | None]]] = {  # name: (title, its number in a run)
    "accuracy": ("accuracy", lambda found: found.chosen.pooled if found.chosen else None),
    "mean": ("clients", lambda found: found.chosen.mean if found.chosen else None),
    "worst": ("worst 10 %", lambda found: found.chosen.worst if found.chosen else None),
    "best": ("best*", lambda found: found.beside.best.pooled),
    "last": ("last", lambda found: found.beside.last.pooled),
    "own_best": ("own best*", lambda found: found.beside.own_best),
}

RULES = {  # what the prediction rules mean
    "global": "nearest global prototype",
    "local": "nearest local prototype, or fixed target",
    "logits": "the model's own logits",
    "received": "logits of the model as received",
    "shared": "logits of the second network, as received",
    "coarse": "logits of the second network's head on the first joint features",
    "joint": "sum of all rules' log-probabilities, at temperatures fitted on the validation part (1 without one)",
}

MAJORITY = "-"  # in place of a rule, in the rows that tell of the majority class


@dataclass(frozen=True)
class Unread:
    """A run of a comparison whose record is damaged."""

    headline: str  # the rule that its method is judged by
    reason: str


@dataclass(frozen=True)
class Cell:
    """Mean over seeds, with its standard deviation and its 95 % interval, as fractions of one."""

    mean: float
    std: float | None = None  # None for a single seed
    interval: Interval | None = None  # likewise

    def __str__(self) -> str:
        """Write it in per cent, with half its interval."""
        return f"{self.short} ± {100 * self.interval.half:.2f}" if self.interval else self.short

    @property
    def short(self) -> str:
        """Write the mean alone, in per cent."""
        return f"{100 * self.mean:.2f}"


@dataclass(frozen=True)
class Row:
    """A method under one prediction rule; gains are those of its headline rule."""

    method: str
    rule: str
    headline: bool
    cells: Mapping[str, Cell | None]  # by column
    note: str = ""
    seeds: tuple[int, ...] = ()  # of the runs that the numbers stand for
    rounds: tuple[int, ...] = ()  # the reported round of each
    chosen_by: str = ""  # validation, test, last; several if runs differ
    local: Contrast | None = None  # against Local
    solo: Contrast | None = None  # against its own solo control
    leads: bool = False  # whether its accuracy is the highest of several methods that share its rule
    alike: Mapping[str, str] = field(default_factory=dict)  # the methods it cannot be told apart from, and why

    @property
    def is_majority(self) -> bool:
        """Tell whether the row is that of the majority class, not of a method."""
        return self.rule == MAJORITY

    @property
    def stands_out(self) -> bool:
        """Tell whether its accuracy is the highest of its rule and can be told apart from that of every rival."""
        return self.leads and not self.alike

    def plain(self) -> dict[str, Any]:
        """Give the row as plain data."""
        return asdict(self)


def best(table: Sequence[Row], column: str) -> Row | None:
    """Find the method that is highest in a column under its headline rule; whether it stands out is another matter."""
    known = [row for row in table if row.headline and not row.is_majority and row.cells.get(column)]
    return max(known, key=lambda row: cell.mean if (cell := row.cells[column]) else -math.inf, default=None)
