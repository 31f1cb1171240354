"""Our number in each place of a table, from the seeds of its cell, or why there is none. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from protonorm.analysis.statistics import Interval, mean_interval
from protonorm.reproduction.cells import Place
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.protocols import Protocol


class Value(NamedTuple):
    """Our number in one place, in per cent, or why there is none."""

    mean: float | None = None
    text: str = ""
    note: str = ""  # what a reader should know besides
    interval: Interval | None = None  # of the mean, over seeds; None for one
    best: str = ""  # mean of the best test rounds beside it, which is optimistic; empty where they are reported anyway


def cell_value(outcomes: Sequence[Outcome], protocol: Protocol, rule: str | None = None) -> Value:
    """Condense the seeds of a cell under a rule, the headline if none is given, in the rounds that are reported."""
    for outcome in outcomes:
        if outcome.state == "damaged":
            return Value(text="damaged", note=outcome.damaged)
        if outcome.state == "diverged" and outcome.run and outcome.run.failure:
            return Value(text="-", note=f"diverged in round {outcome.run.failure.round} with seed {outcome.seed}")
    done = finished_runs(outcomes)
    found = [one for outcome in done if (one := outcome.reported.get(rule or _headline(outcome)))]
    numbers = [100 * one.chosen.pooled for one in found if one.chosen]
    if not numbers:
        return Value(text="none", note="no accuracy under this rule") if done else _absent(outcomes)
    note = share_of_seeds(len(numbers), len(outcomes))
    text = with_spread(numbers, protocol)
    best = fmean(100 * one.beside.best.pooled for one in found if one.chosen)
    return Value(
        fmean(numbers),
        f"{text} ({note})" if note else text,
        note,
        mean_interval(numbers),
        "" if protocol.is_optimistic else f"{best:.2f}",
    )


def finished_runs(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep the seeds whose runs are finished."""
    return [one for one in outcomes if one.state == "finished" and one.run]


def with_spread(numbers: Sequence[float], protocol: Protocol) -> str:
    """Write the mean of seeds with what the protocol has behind ±."""
    spread = protocol.spread(numbers)
    return f"{fmean(numbers):.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def share_of_seeds(found: int, asked: int) -> str:
    """Say how many of the seeds that were asked for a number comes from; nothing if from all."""
    return "" if found == asked else f"{found} of {asked} seeds"


def values(findings: Findings, rule: str | None = None) -> dict[Place, Value]:
    """Condense every cell."""
    return {place: cell_value(findings.at(*place), findings.protocol, rule) for place in findings.places}


def _headline(outcome: Outcome) -> str:
    return outcome.run.info.headline if outcome.run else ""


def _absent(outcomes: Sequence[Outcome]) -> Value:
    """Say why there is no number: the first reason of all seeds that explains the most."""
    states = {outcome.state: outcome for outcome in reversed(outcomes)}
    if missing := states.get("missing"):
        return Value(text="no data", note=missing.missing)
    if refused := states.get("refused"):
        return Value(text="not run", note=refused.refused)
    if begun := states.get("begun"):
        return Value(text=begun.progress, note="begun, not finished")
    return Value(text="not run yet", note="not run yet") if outcomes else Value()
