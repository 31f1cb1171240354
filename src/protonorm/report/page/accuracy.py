"""Accuracy on the page: a chart for each rule, and each client's and class's accuracy in chosen rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protonorm.comparison import Row
from protonorm.deals import data_sets
from protonorm.history import Run
from protonorm.report.page.groups import Groups
from protonorm.report.page.lines import Line, chart, curve_of, over_seeds, thinned
from protonorm.report.page.words import counted, listed, per_cent, rounded
from protonorm.tables import RULES

NUMBERS = 200_000  # accuracies of single clients and classes on a page, about 6 bytes each
ROUNDS = 50  # to choose from at most
LABEL = "test accuracy, pooled (%)"


def accuracy_charts(groups: Groups, majorities: Sequence[Row]) -> list[dict[str, Any]]:
    """Draw the rules of one run in one chart; of several methods, a chart for each rule.

    Where data were dealt out in several ways, no one majority line is true of all methods: there is none.
    """
    level = majorities[0].cells["best"] if len(majorities) == 1 else None
    ranked = len(data_sets([run for runs in groups.values() for run in runs])) == 1
    reference = [{"name": "majority", "y": rounded(100 * level.mean)}] if level else []
    if len(groups) == 1:
        ((_, runs),) = groups.items()
        lines = [_line(rule, slot, runs, rule) for slot, rule in enumerate(rules_of(groups))]
        return [_chart("accuracy", "Every rule", lines, reference, ranked)]
    charts = []
    for rule in rules_of(groups):
        lines = [_line(name, slot, runs, rule) for slot, (name, runs) in enumerate(groups.items())]
        charts.append(_chart(f"accuracy-{rule}", f"{rule}: {RULES.get(rule, rule)}", lines, reference, ranked))
    return charts


def rules_of(groups: Groups) -> list[str]:
    """List the rules of all runs, the usual ones in the usual order."""
    found = dict.fromkeys(rule for runs in groups.values() for run in runs for rule in run.about["rules"])
    return [*(rule for rule in RULES if rule in found), *(rule for rule in found if rule not in RULES)]


def details(run: Run, runs: int) -> dict[str, Any]:
    """Give a run's accuracy by client and by class, in rounds to choose from and in each rule's best round."""
    width = len(run.about["networks"]) + len(run.about["classes"])
    most = min(ROUNDS, NUMBERS // (width * len(run.about["rules"]) * runs))
    best = {rule: found["best"]["round"] for rule in run.about["rules"] if (found := run.summary(rule))}
    chosen = {line["round"] for line in thinned(run.history, max(2, most))} | set(best.values())
    lines = [line for line in run.history if line["round"] in chosen]
    return {
        "rounds": [line["round"] for line in lines],
        "best": best,
        "rules": {
            rule: {part: [_shares(line["rules"].get(rule), part) for line in lines] for part in ("clients", "classes")}
            for rule in run.about["rules"]
        },
    }


def _line(name: str, slot: int, runs: Sequence[Run], rule: str) -> Line:
    pooled = [curve_of(run.history, lambda line: (line["rules"].get(rule) or {}).get("pooled")) for run in runs]
    return over_seeds(name, slot, pooled, 100.0)


def _chart(id: str, title: str, lines: Sequence[Line], reference: list[dict[str, Any]], ranked: bool) -> dict[str, Any]:
    known = [line for line in lines if line["x"]]
    words = _conclusion(known, reference) + (_highest(known) if ranked and len(known) > 1 else "")
    return chart(id, title, LABEL, known, words, reference=reference, most=100)


def _conclusion(lines: Sequence[Line], reference: Sequence[Mapping[str, Any]]) -> str:
    if not lines:
        return "No round is done yet."
    done = max(line["x"][-1] for line in lines)
    short = {line["name"]: f" (round {line['x'][-1]})" for line in lines if line["x"][-1] < done}
    ends = [f"{line['name']} {line['y'][-1]:.2f} %{short.get(line['name'], '')}" for line in lines]
    text = f"After {counted(done, 'round')}: {listed(ends)}"
    text += "".join(f"; guessing the majority class gives {per_cent(one['y'] / 100)}" for one in reference)
    return f"{text}."


def _highest(lines: Sequence[Line]) -> str:
    lead = max(lines, key=lambda line: float(line["top"]))
    return f" {lead['name']} reaches the highest, {lead['top']:.2f} %."


def _shares(value: Mapping[str, Any] | None, part: str) -> list[float | None] | None:
    return [None if one is None else rounded(100 * one) for one in value[part]] if value else None
