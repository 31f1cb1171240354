"""Everything the page says, from the records of runs: plain data for the template and for the charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protonorm.comparison import COLUMNS, Row, best, guesses, rows
from protonorm.deals import data_sets
from protonorm.display import headline
from protonorm.history import Run
from protonorm.report.page.accuracy import accuracy_charts, details, rules_of
from protonorm.report.page.costs import byte_charts, seconds_chart, total_seconds, traffic, traffic_words, untimed
from protonorm.report.page.groups import Groups
from protonorm.report.page.prototypes import prototype_charts
from protonorm.report.page.provenance import notices, sources, standings
from protonorm.report.page.settings import commands, settings_table
from protonorm.report.page.sphere import read_snapshots, sphere
from protonorm.report.page.words import counted, duration, listed, per_cent, size
from protonorm.tables import RULES


def content(groups: Groups) -> dict[str, Any]:
    """Collect what the template needs; `data` is for the charts."""
    table = rows(groups)
    majorities = [row for row in table if row.guess]
    ranked = len(groups) > 1 and len(by_data(groups)) == 1
    costs = traffic(groups)
    first = next(iter(groups.values()))[0]
    charts = {
        "accuracy": accuracy_charts(groups, majorities),
        "prototypes": prototype_charts(groups),
        "bytes": byte_charts(groups),
        "seconds": [seconds_chart(groups)],
    }
    data = {"charts": charts, "traffic": {"rows": costs, "words": traffic_words(costs)}, **worlds_and_runs(groups)}
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
        "traffic": data["traffic"],
        "spheres": bool(data["spheres"]),
        "lost": data.pop("lost"),
        "standings": standings(groups),
        "commands": commands(groups),
        "settings": settings_table(groups),
        "sources": sources(groups),
        "versions": first.about.get("versions", {}),
        "data": data,
    }


def title(groups: Groups) -> str:
    """Name the page after its methods and data."""
    data = by_data(groups)
    runs = [found[0] for found in groups.values()]
    methods = dict.fromkeys(str(run.experiment["algorithm"]["name"]).split(":")[-1] for run in runs)
    names = list(groups if len(data) == 1 else methods)
    shown = listed(names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"])
    return f"{shown} on {listed(list(data))}"


def by_data(groups: Groups) -> dict[str, Groups]:
    """Part the methods by their data sets: accuracies on different data are not held against each other."""
    names = data_sets([found[0] for found in groups.values()])
    return {
        name: {method: found for method, found in groups.items() if data_sets(found[:1]) == [name]} for name in names
    }


def lead(groups: Groups, table: Sequence[Row]) -> str:
    """Say in a sentence for each data set how the comparison, or the run, came out."""
    parts = by_data(groups)
    told = [outcome(part, [row for row in table if row.method in part]) for part in parts.values()]
    empty = [f"No round{f' on {name}' if len(parts) > 1 else ''} is done yet." for name in parts]
    seeds = max(map(len, groups.values()))
    spread = f" Means over {seeds} seeds, ± one standard deviation." if seeds > 1 and any(told) else ""
    return " ".join(one or none for one, none in zip(told, empty, strict=True)) + spread


def outcome(groups: Groups, table: Sequence[Row]) -> str:
    """Say how the methods on one data set came out; nothing if no round is done."""
    winner = best(table, "best")
    if winner is None or (top := winner.cells["best"]) is None:
        return ""
    majority = guesses(groups[winner.method])[0].cells["best"]
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
    """Put the first numbers on top: of each method, or of the one run."""
    if len(groups) > 1:
        heads = [row for row in table if row.headline]
        return [
            {
                "slot": None if row.guess else slot,
                "name": row.method,
                "value": f"{cell} %" if (cell := row.cells["best"]) else "–",
                "note": "guessing, for scale" if row.guess else f"best round, rule {row.rule}",
                "first": ranked and row is best(table, "best"),
            }
            for slot, row in enumerate(heads)
        ]
    ((_, runs),) = groups.items()
    head, majority = table[0], table[-1].cells["best"]
    named = [("best", "best round"), ("last", "last round"), ("worst", "worst tenth of the clients")]
    found = [(name, f"{cell} %" if (cell := head.cells[column]) else "–") for column, name in named]
    found.append(("majority class", per_cent(majority.mean if majority else None)))
    found.append(("sent in all", size(sum(sum(line["bytes"].values()) for line in runs[0].history))))
    found.append(("time of all rounds", duration(total_seconds(runs[0]))))
    notes = {"time of all rounds": untimed(runs[0])}
    return [
        {"slot": None, "name": name, "value": value, "note": notes.get(name, ""), "first": False}
        for name, value in found
    ]


def table_rows(table: Sequence[Row], *, ranked: bool) -> list[dict[str, Any]]:
    """Write the comparison's rows; the best headline number of each column is marked if they are ranked."""
    methods = dict.fromkeys(row.method for row in table if not row.guess)
    slots = {name: slot for slot, name in enumerate(methods)}
    winners = {column: best(table, column) if ranked else None for column in COLUMNS}
    return [
        {
            "method": row.method,
            "again": index > 0 and table[index - 1].method == row.method,
            "slot": slots.get(row.method) if len(slots) > 1 else None,
            "rule": row.rule,
            "headline": row.headline,
            "cells": [(str(cell) if (cell := row.cells[name]) else "–", winners[name] is row) for name in COLUMNS],
            "note": row.note,
        }
        for index, row in enumerate(table)
    ]


def worlds_and_runs(groups: Groups) -> dict[str, Any]:
    """Give who holds what, and each run's details; runs on the same deal of the data share one world."""
    worlds: dict[str, dict[str, Any]] = {}
    runs, spheres, lost = [], [], []
    count = sum(map(len, groups.values()))
    for slot, (name, found) in enumerate(groups.items()):
        for run in found:
            world = worlds.setdefault(str((run.about["classes"], run.about["counts"])), world_of(run, name))
            label = f"{name}, seed {run.experiment['seed']}" if len(found) > 1 else name
            runs.append(
                {"name": label, "method": name, "slot": slot, "seed": run.experiment["seed"], "world": world["name"]}
            )
            runs[-1] |= {"headline": run.about["headline"], **details(run, count)}
            snapshots, unread = read_snapshots(run, count)
            lost += [f"{label}: {one}" for one in unread]
            if snapshots:
                shown = sphere(snapshots, len(run.about["classes"]))
                spheres.append({"name": label, "slot": slot, "world": world["name"], **shown})
    told = {"worlds": list(worlds.values()), "runs": runs, "spheres": spheres}
    return {**told, "lost": lost, "rules": rules_of(groups)}


def world_of(run: Run, name: str) -> dict[str, Any]:
    """Describe how the data were dealt out."""
    settings = run.experiment["partition"]
    told = ", ".join(f"{key} {settings[key]}" for key in ("alpha", "classes_per_client", "seed") if key in settings)
    dealt = f"{run.experiment['dataset']['name']}, {settings['name']}" + (f" ({told})" if told else "")
    majority = run.about["majority"] or {"clients": None, "classes": None}
    return {
        "name": f"{dealt}, {counted(len(run.about['networks']), 'client')}, as in {name}",
        "classes": [str(one) for one in run.about["classes"]],
        "networks": [str(one["name"] if isinstance(one, dict) else one) for one in run.about["networks"]],
        "train": run.about["counts"]["train"],
        "test": run.about["counts"]["test"],
        "majority": {part: _shares(majority[part]) for part in ("clients", "classes")},
    }


def _shares(values: Sequence[float | None] | None) -> list[float | None] | None:
    return [None if value is None else round(100 * value, 2) for value in values] if values else None
