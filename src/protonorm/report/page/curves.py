"""Curves over rounds: mean and spread over seeds, thinned to what a screen can show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, TypeVar

import numpy as np

from protonorm.report.page.text import significant
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

POINTS = 300  # of a curve at most; wider than most screens are

Value = TypeVar("Value")
Curve = Mapping[int, float]  # a value by round
Line = dict[str, Any]  # name, slot (which colour), x, y, and perhaps low and high


def over_seeds(name: str, slot: int, curves: Sequence[Curve], scale: float = 1.0) -> Line:
    """Average curves over the seeds that reached each round; the band is a standard deviation to each side."""
    held = {one: [scale * curve[one] for curve in curves if one in curve] for one in sorted(set().union(*curves))}
    rounds = thinned(list(held), POINTS)
    values = [held[one] for one in rounds]
    means = [fmean(one) for one in values]
    line = _line(name, slot, rounds, means)
    if any(len(one) > 1 for one in values):
        spreads = [stdev(one) if len(one) > 1 else 0.0 for one in values]
        pairs = list(zip(means, spreads, strict=True))
        line["low"] = [significant(mean - spread) for mean, spread in pairs]
        line["high"] = [significant(mean + spread) for mean, spread in pairs]
    return line


def with_range(name: str, slot: int, curves: Sequence[Mapping[int, Sequence[float]]]) -> Line:
    """Draw (lowest, middle, highest) of each round as a line with a band, averaged over seeds."""
    rounds = thinned(sorted(set().union(*curves)), POINTS)
    values = [np.mean([curve[one] for curve in curves if one in curve], axis=0) for one in rounds]
    line = _line(name, slot, rounds, [one[1] for one in values])
    return line | {part: [significant(one[i]) for one in values] for part, i in (("low", 0), ("high", 2))}


def chart(id: str, title: str, label: str, lines: Sequence[Line], conclusion: str, **more: Any) -> dict[str, Any]:
    """Describe a chart for the page; its conclusion is also for those who do not see it."""
    return {"id": id, "title": title, "label": label, "lines": list(lines), "conclusion": conclusion, **more}


def by_round(run: Run, value: Callable[[RoundRecord], Value | None]) -> dict[int, Value]:
    """Collect a value of each round, where there is one."""
    return {record.round: found for record in run.rounds if (found := value(record)) is not None}


def thinned(items: Sequence[Any], most: int) -> list[Any]:
    """Keep at most so many items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    chosen = np.unique(np.linspace(0, len(items) - 1, max(most, 2)).round().astype(int))
    return [items[i] for i in chosen]


def _line(name: str, slot: int, rounds: Sequence[int], values: Sequence[float]) -> Line:
    return {"name": name, "slot": slot, "x": list(rounds), "y": [significant(one) for one in values]}
