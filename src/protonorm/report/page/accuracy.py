"""Accuracy over rounds: of one run a line for each rule, of several methods a chart for each rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from protonorm.analysis.comparison import RULES, Row
from protonorm.report.page.curves import Line, by_round, chart, over_seeds
from protonorm.report.page.groups import Groups
from protonorm.report.page.text import counted, listed, per_cent, rounded, significant
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

LABEL = "test accuracy, pooled (%)"
NOTHING = "No round has been evaluated yet."
UNTESTED = "The test parts are not evaluated (tested=false)."


def accuracy_charts(groups: Groups, majorities: Sequence[Row]) -> list[dict[str, Any]]:
    """Draw the rules of one run in one chart; of several methods, a chart for each rule.

    Where runs differ in who holds what, no one majority line is true of all methods: there is none.
    """
    level = majorities[0].cells["accuracy"] if len(majorities) == 1 else None
    reference = [{"name": "majority", "y": rounded(100 * level.mean)}] if level else []
    if len(groups) == 1:
        ((_, runs),) = groups.items()
        lines = [_line(rule, slot, runs, rule) for slot, rule in enumerate(rules_of(groups))]
        return [_chart("accuracy", "Every rule", lines, reference)]
    charts = []
    for rule in rules_of(groups):
        lines = [_line(name, slot, runs, rule) for slot, (name, runs) in enumerate(groups.items())]
        charts.append(_chart(f"accuracy-{rule}", f"{rule}: {RULES.get(rule, rule)}", lines, reference))
    return charts


def is_untested(run: Run) -> bool:
    """Tell whether a run looks at the validation parts alone, as those of a search do."""
    return run.info.experiment.plain().get("tested") is False


def rules_of(groups: Groups) -> list[str]:
    """List the rules of all runs, the known ones in their usual order."""
    found = dict.fromkeys(rule for runs in groups.values() for run in runs for rule in run.info.rules)
    return [*(rule for rule in RULES if rule in found), *(rule for rule in found if rule not in RULES)]


def _line(name: str, slot: int, runs: Sequence[Run], rule: str) -> Line:
    def pooled(record: RoundRecord) -> float | None:
        found = record.rules.get(rule)
        return found.pooled if found else None

    curves = [curve for run in runs if (curve := by_round(run, pooled))]
    line = over_seeds(name, slot, curves, 100.0)
    ends = sorted({max(curve) for curve in curves})
    last = fmean(100 * curve[max(curve)] for curve in curves) if curves else None  # of each seed, wherever it ended
    return line | {
        "reported": [one for run in runs if (one := _reported(run, pooled))],
        "ends": ends,
        "last": last,
        "untested": all(map(is_untested, runs)),
    }


def _reported(run: Run, pooled: Callable[[RoundRecord], float | None]) -> list[float | None] | None:
    """Give the reported round of a run and its accuracy in per cent; None if the rule did not exist in it."""
    value = pooled(run.chosen.record) if run.chosen else None
    return [run.chosen.record.round, significant(100 * value)] if run.chosen and value is not None else None


def _chart(id: str, title: str, lines: Sequence[Line], reference: list[dict[str, Any]]) -> dict[str, Any]:
    known = [line for line in lines if line["x"]]
    nothing = UNTESTED if all(line["untested"] for line in lines) else NOTHING
    conclusion = " ".join(filter(None, [_conclusion(known, reference) or nothing, _reported_rounds(known)]))
    return chart(id, title, LABEL, known, conclusion, reference=reference, most=100)


def _conclusion(lines: Sequence[Line], reference: Sequence[Mapping[str, Any]]) -> str:
    if not lines:
        return ""
    done = max(line["ends"][-1] for line in lines)
    ends = [f"{line['name']} {line['last']:.2f} %{_ended(line['ends'], done)}" for line in lines]
    text = f"After {counted(done, 'round')}: {listed(ends)}"
    text += "".join(f"; guessing the majority class gives {per_cent(one['y'] / 100)}" for one in reference)
    return f"{text}."


def _ended(rounds: Sequence[int], done: int) -> str:
    """Say where a method's seeds ended, if not all of them in the last round of all."""
    if list(rounds) == [done]:
        return ""
    return f" (round {rounds[0]})" if len(rounds) == 1 else f" (rounds {rounds[0]} to {rounds[-1]})"


def _reported_rounds(lines: Sequence[Line]) -> str:
    """Say which rounds the rings mark."""
    rounds = {line["name"]: sorted({one[0] for one in line["reported"]}) for line in lines if line["reported"]}
    if len({tuple(one) for one in rounds.values()}) == 1:
        return f"Reported round: {listed([str(one) for one in next(iter(rounds.values()))])}."
    told = [f"{name} {listed([str(one) for one in found])}" for name, found in rounds.items()]
    return f"Reported rounds: {', '.join(told)}." if told else ""
