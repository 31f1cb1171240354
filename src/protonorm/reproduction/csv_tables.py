"""All numbers of a table for machines: one line for each cell, seed and rule. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protonorm import __version__
from protonorm.analysis.plain_text import csv_lines
from protonorm.reproduction.accuracy import share_of_seeds
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.tables import Table
from protonorm.runs.reader import Summary

COLUMNS = (
    "row", "column", "seed", "state", "rule", "headline", "best", "best_round", "last", "clients", "worst", "own_best",
    "paper", "paper_std", "key", "note",
)  # fmt: skip
ORIGIN = ("profile", "version", "command")  # at the end of every line


def accuracy_csv(findings: Findings) -> str:
    """Write every cell, also those without a number; accuracies in per cent."""
    lines = [line for outcome in findings.outcomes for line in _lines(findings, outcome)]
    return _text(findings, COLUMNS, [[line[name] for name in COLUMNS] for line in lines])


def table_csv(findings: Findings, tables: Sequence[Table]) -> str:
    """Write the entries of other tables as they are shown."""
    titles = (tables[0].corner, *tables[0].columns)
    return _text(findings, titles, [[row, *(one.text for one in line)] for table in tables for row, line in table.rows])


def _lines(findings: Findings, outcome: Outcome) -> list[dict[str, Any]]:
    printed = findings.study.paper.get(outcome.cell.place) if findings.profile.is_result else None
    common: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "row": outcome.cell.row,
        "column": outcome.cell.column,
        "seed": outcome.seed,
        "state": outcome.state,
        "key": outcome.key or "",
        "note": _note(findings, outcome),
    }
    if printed:
        common |= {"paper": "-" if printed.mean is None else printed.mean, "paper_std": printed.std or ""}
    if outcome.run is None:
        return [common]
    headline = outcome.run.info.headline
    return [
        common | _numbers(found) | {"rule": rule, "headline": rule == headline}
        for rule, found in outcome.summaries.items()
    ]


def _note(findings: Findings, outcome: Outcome) -> str:
    """Say why there is no number, where training diverged, or that other seeds of the cell are not finished."""
    if outcome.state == "diverged" and outcome.run and outcome.run.failure:
        return f"round {outcome.run.failure.round}"
    if outcome.state == "finished":
        seeds = findings.at(*outcome.cell.place)
        return share_of_seeds(sum(one.state == "finished" for one in seeds), len(seeds))
    return outcome.reason


def _numbers(found: Summary | None) -> dict[str, Any]:
    if found is None:
        return {}
    shares = {
        "best": found.best.pooled,
        "last": found.last.pooled,
        "clients": found.best.mean,
        "worst": found.best.worst,
        "own_best": found.own_best,
    }
    return {name: f"{100 * share:.4f}" for name, share in shares.items()} | {"best_round": found.best.round}


def _text(findings: Findings, titles: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    origin = [findings.profile.stamp or findings.profile.name, __version__, findings.command]
    return csv_lines([[*titles, *ORIGIN], *([*line, *origin] for line in lines)])
