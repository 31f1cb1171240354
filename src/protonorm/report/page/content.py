"""Everything the page says, from the records of runs: plain data for the template and for the charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protonorm.analysis.comparison import COLUMNS, RULES, Row, best, majority_rows, rows
from protonorm.analysis.labels import dataset_names
from protonorm.analysis.summaries import headline
from protonorm.report.page import costs
from protonorm.report.page.accuracy import NOTHING, accuracy_charts, rules_of
from protonorm.report.page.clients import populations_and_runs
from protonorm.report.page.commands import commands, settings_table
from protonorm.report.page.groups import Groups
from protonorm.report.page.prototypes import prototype_charts
from protonorm.report.page.provenance import notices, sources, standings
from protonorm.report.page.text import duration, listed, per_cent, size

METHODS = 4  # named in a title; of more, the first ones


def content(groups: Groups) -> dict[str, Any]:
    """Collect what the template needs; `data` is for the charts."""
    table = rows(groups)
    majorities = [row for row in table if row.is_majority]
    ranked = len(groups) > 1 and len(by_data(groups)) == 1
    sent = costs.traffic(groups)
    charts = {
        "accuracy": accuracy_charts(groups, majorities),
        "prototypes": prototype_charts(groups),
        "bytes": costs.byte_charts(groups),
        "seconds": [costs.seconds_chart(groups)],
    }
    bars = {"rows": sent, "conclusion": costs.traffic_conclusion(sent)}
    data = {"charts": charts, "traffic": bars, **populations_and_runs(groups)}
    return {
        "title": title(groups),
        "headline": "; ".join(dict.fromkeys(headline({name: runs}) for name, runs in groups.items())),
        "lead": lead(groups, table),
        "cards": cards(groups, table, ranked=ranked),
        "notices": notices(groups),
        "columns": [heading for heading, _ in COLUMNS.values()],
        "rows": table_rows(table, ranked=ranked),
        "ranked": ranked,
        "rules": [(rule, RULES[rule]) for rule in rules_of(groups) if rule in RULES],
        "charts": charts,
        "traffic": bars,
        "spheres": bool(data["spheres"]),
        "unread": data.pop("unread"),
        "standings": standings(groups),
        "commands": commands(groups),
        "settings": settings_table(groups),
        "sources": sources(groups),
        "data": data,
    }


def title(groups: Groups) -> str:
    """Name the page after its methods and data."""
    data = by_data(groups)
    runs = [found[0] for found in groups.values()]
    methods = dict.fromkeys(run.info.experiment.algorithm.name.split(":")[-1] for run in runs)
    names = list(groups if len(data) == 1 else methods)
    return f"{listed(names, METHODS)} on {listed(list(data))}"


def by_data(groups: Groups) -> dict[str, Groups]:
    """Group the methods by their data sets: accuracies on different data are not compared with each other."""
    names = dataset_names([found[0] for found in groups.values()])
    return {
        name: {method: found for method, found in groups.items() if dataset_names(found[:1]) == [name]}
        for name in names
    }


def lead(groups: Groups, table: Sequence[Row]) -> str:
    """Say in a sentence for each data set how the comparison, or the run, came out."""
    parts = by_data(groups)
    told = [outcome(part, [row for row in table if row.method in part]) for part in parts.values()]
    empty = [NOTHING if len(parts) == 1 else f"No round on {name} has been evaluated yet." for name in parts]
    seeds = max(map(len, groups.values()))
    spread = f" Means over {seeds} seeds, ± one standard deviation." if seeds > 1 and any(told) else ""
    return " ".join(one or none for one, none in zip(told, empty, strict=True)) + spread


def outcome(groups: Groups, table: Sequence[Row]) -> str:
    """Say how the methods on one data set came out; nothing if no round has been evaluated."""
    winner = best(table, "best")
    if winner is None or (top := winner.cells["best"]) is None:
        return ""
    majority = majority_rows(groups[winner.method])[0].cells["best"]
    text = f"{winner.method} reaches {top} % under the rule {winner.rule}"
    others = [row for row in table if row is not winner]
    if second := best(others, "best"):
        cell = second.cells["best"]
        text += f", {100 * (top.mean - cell.mean):.2f} points above {second.method} ({second.rule})" if cell else ""
    if majority:
        apart = 100 * (top.mean - majority.mean)
        text += f", {abs(apart):.2f} points {'above' if apart >= 0 else 'below'} guessing each client’s majority class"
    return f"{text}."


def cards(groups: Groups, table: Sequence[Row], *, ranked: bool) -> list[dict[str, Any]]:
    """Choose the numbers at the top of the page: of each method, or of the one run."""
    if len(groups) > 1:
        heads = [row for row in table if row.headline]
        return [
            {
                "slot": None if row.is_majority else slot,
                "name": row.method,
                "value": f"{cell} %" if (cell := row.cells["best"]) else "–",
                "note": "guessing, for scale" if row.is_majority else f"best round, rule {row.rule}",
                "first": ranked and row is best(table, "best"),
            }
            for slot, row in enumerate(heads)
        ]
    ((_, runs),) = groups.items()
    head, majority = table[0], table[-1].cells["best"]
    named = [("best", "best round"), ("last", "last round"), ("worst", "worst tenth of the clients")]
    found = [(name, f"{cell} %" if (cell := head.cells[column]) else "–") for column, name in named]
    found.append(("majority class", per_cent(majority.mean if majority else None)))
    found.append(("sent in all", size(costs.total_bytes(runs[0]))))
    found.append(("time of all rounds", duration(costs.total_seconds(runs[0]))))
    notes = {"time of all rounds": costs.untimed(runs[0])}
    return [
        {"slot": None, "name": name, "value": value, "note": notes.get(name, ""), "first": False}
        for name, value in found
    ]


def table_rows(table: Sequence[Row], *, ranked: bool) -> list[dict[str, Any]]:
    """Write the comparison's rows; the best headline number of each column is marked if they are ranked."""
    methods = dict.fromkeys(row.method for row in table if not row.is_majority)
    slots = {name: slot for slot, name in enumerate(methods)}
    winners = {column: best(table, column) if ranked else None for column in COLUMNS}
    return [
        {
            "method": row.method,
            "continued": index > 0 and table[index - 1].method == row.method,
            "slot": slots.get(row.method) if len(slots) > 1 else None,
            "rule": row.rule,
            "headline": row.headline,
            "cells": [(str(cell) if (cell := row.cells[name]) else "–", winners[name] is row) for name in COLUMNS],
            "note": row.note,
        }
        for index, row in enumerate(table)
    ]
