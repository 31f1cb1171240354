"""Runs of several methods side by side: the rows of a table. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from protonorm.analysis.contrasts import against_local, against_solo, not_distinguishable
from protonorm.analysis.labels import data_settings, labels
from protonorm.analysis.row import COLUMNS, MAJORITY, RULES, Cell, Reported, Row, Unread, best
from protonorm.analysis.statistics import mean_interval, share_a_seed
from protonorm.runs.run import Run

__all__ = [
    "COLUMNS",
    "MAJORITY",
    "RULES",
    "Cell",
    "Row",
    "Unread",
    "best",
    "majority_rows",
    "rows",
    "whole",
]


def rows(runs: Mapping[str, Sequence[Run | Unread]], margin: float = 0.0) -> list[Row]:
    """Make a row for each method and rule, headline rules first, then a `majority` row for each partition of data.

    A method of which no run could be read has one row, whose note says why. Gains up to the margin count as none.
    """
    groups = whole(runs)
    table = _ranked([row for method, found in runs.items() for row in _method_rows(method, found)], groups, margin)
    local, solo = against_local(groups, margin), against_solo(groups, margin)
    table = [
        replace(row, local=local.get(row.method), solo=solo.get(row.method)) if row.headline else row for row in table
    ]
    return [*table, *majority_rows([run for found in groups.values() for run in found])]


def whole(runs: Mapping[str, Sequence[Run | Unread]]) -> dict[str, list[Run]]:
    """Keep the runs that could be read, each once, and the methods that have any."""
    read = {method: _once([run for run in found if isinstance(run, Run)]) for method, found in runs.items()}
    return {method: found for method, found in read.items() if found}


def majority_rows(runs: Sequence[Run]) -> list[Row]:
    """Say what guessing each client's most frequent class gives: a row for each partition, with a label if several."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(data_settings(run), sort_keys=True), []).append(run)
    names = labels([data_settings(alike[0]) for alike in found.values()])
    return [_majority_row(alike, name) for alike, name in zip(found.values(), names, strict=True)]


def reported(run: Run, rule: str) -> Reported | None:
    """Read a run's numbers under a rule; its round is chosen once, under the headline rule. None if there are none."""
    choice, beside = run.chosen, run.summary(rule)
    accuracy = choice.record.rules.get(rule) if choice else None
    return Reported(run.info.experiment.seed, choice, accuracy, beside) if beside else None


def _once(runs: Sequence[Run]) -> list[Run]:
    # federations of other clients may have agreed on the same
    return list({(run.info.key, tuple(run.info.client_names or ())): run for run in runs}.values())


def _ranked(table: Sequence[Row], groups: Mapping[str, Sequence[Run]], margin: float) -> list[Row]:
    """Mark the highest accuracy of the methods that share a headline rule, with those it cannot be told apart from.

    Methods with different headline rules are not ranked: what would win might be the rule. But nothing stands out where
    a method is no worse under another one.
    """
    heads = [row for row in table if row.headline and row.cells["accuracy"]]
    marked = {}
    for rule in dict.fromkeys(row.rule for row in heads):
        rivals = [row for row in heads if row.rule == rule]
        top = best(rivals, "accuracy") if len(rivals) > 1 else None
        if top is not None:
            found = {row.method: groups[row.method] for row in rivals}
            alike = not_distinguishable(top.method, found, margin) | _no_lower(top, heads)
            marked[top.method] = replace(top, leads=True, alike=alike)
    return [marked.get(row.method, row) if row.headline else row for row in table]


def _no_lower(top: Row, heads: Sequence[Row]) -> dict[str, str]:
    """List the methods with other headline rules whose accuracy is no lower."""
    level = cell.mean if (cell := top.cells["accuracy"]) else 0.0
    others = [(row, row.cells["accuracy"]) for row in heads if row.rule != top.rule]
    return {row.method: f"no lower, but judged by {row.rule}" for row, one in others if one and one.mean >= level}


def rules_in_order(run: Run) -> list[str]:
    """List a run's rules, its headline first."""
    headline = run.info.headline
    return [headline, *(rule for rule in run.info.rules if rule != headline)]


def _method_rows(method: str, found: Sequence[Run | Unread]) -> list[Row]:
    runs = _once([run for run in found if isinstance(run, Run)])
    unread = [one for one in found if isinstance(one, Unread)]
    rules = rules_in_order(runs[0]) if runs else [unread[0].headline]
    return [_row(method, rule, rule == rules[0], runs, unread) for rule in rules]


def _row(method: str, rule: str, headline: bool, runs: Sequence[Run], unread: Sequence[Unread]) -> Row:
    found = [one for run in runs if (one := reported(run, rule))]
    repeated = share_a_seed([one.seed for one in found])
    cells = {name: _cell([number(one) for one in found], repeated) for name, (_, number) in COLUMNS.items()}
    known = [(one.seed, one.choice) for one in found if one.choice and one.chosen]
    return Row(
        method,
        rule,
        headline,
        cells,
        _note(runs, unread, len(known)),
        seeds=tuple(seed for seed, _ in known),
        rounds=tuple(choice.record.round for _, choice in known),
        chosen_by=", ".join(sorted({choice.by for _, choice in known})),
    )


def _note(runs: Sequence[Run], unread: Sequence[Unread], known: int) -> str:
    """Say what a reader must know of a row: runs that stopped, seeds without a number, damage."""
    rounds = sorted({run.failure.round for run in runs if run.failure})
    stopped = [f"stopped in round {' and '.join(map(str, rounds))}"] if rounds else []
    seeds = len(runs) + len(unread)
    fewer = [f"{known} of {seeds} seeds"] if 0 < known < seeds else []
    return ", ".join([*stopped, *fewer, *(f"not read: {one.reason.rstrip('.')}" for one in unread)])


def _majority_row(runs: Sequence[Run], name: str) -> Row:
    """Average the majority line over the seeds of one partition; equal populations count once."""
    seen = {tuple(part.tobytes() for part in run.population): run.majority for run in runs}
    levels = [level for level in seen.values() if level]
    pooled, mean, worst = ([getattr(level, part) for level in levels] for part in ("pooled", "mean", "worst"))
    columns = {"mean": mean, "worst": worst, "own_best": mean}
    cells = {column: _cell(columns.get(column, pooled)) for column in COLUMNS}
    return Row(f"majority ({name})" if name else "majority", MAJORITY, True, cells)


def _cell(values: Sequence[float | None], repeated: bool = False) -> Cell | None:
    """Average over runs; those that share a seed are not independent, and have no interval."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Cell(fmean(known), stdev(known) if len(known) > 1 else None, None if repeated else mean_interval(known))
