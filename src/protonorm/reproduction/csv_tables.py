"""All numbers of a table for machines: one line for each cell, seed and rule. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protonorm import __version__
from protonorm.analysis.plain_text import csv_lines
from protonorm.analysis.row import Reported
from protonorm.reproduction.cutting import cut_in_short
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.tables import Table
from protonorm.reproduction.values import finished_runs, share_of_seeds

COLUMNS = (
    "row", "column", "seed", "seeds", "state", "rule", "headline", "accuracy", "round", "chosen_by", "clients", "worst",
    "best", "best_round", "last", "own_best", "paper", "paper_std", "key", "note",
)  # fmt: skip
ORIGIN = ("cut", "protocol", "profile", "version", "command")  # at the end of every line


def accuracy_csv(findings: Findings) -> str:
    """Write every cell, also those without a number; accuracies in per cent, a line for each seed and no ±.

    `accuracy`, `clients` and `worst` are those of the reported `round`; `best` and `own_best` are optimistic; `seeds`
    counts those of the cell that are finished. A run that is not finished has a line without numbers.
    """
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
        "seeds": len(finished_runs(findings.at(*outcome.cell.place))),
        "state": outcome.state,
        "key": outcome.key or "",
        "note": _note(findings, outcome),
    }
    if printed:
        common |= {"paper": "-" if printed.mean is None else printed.mean, "paper_std": printed.std or ""}
    if outcome.run is None or outcome.state != "finished":
        return [common]
    headline = outcome.run.info.headline
    return [
        common | _numbers(found) | {"rule": rule, "headline": rule == headline}
        for rule, found in outcome.reported.items()
    ]


def _note(findings: Findings, outcome: Outcome) -> str:
    """Say why there is no number, where training diverged, or that other seeds of the cell are not finished."""
    if outcome.state == "diverged" and outcome.run and outcome.run.failure:
        return f"round {outcome.run.failure.round}"
    if outcome.state == "finished":
        seeds = findings.at(*outcome.cell.place)
        return share_of_seeds(len(finished_runs(seeds)), len(seeds))
    return outcome.progress if outcome.state == "begun" else outcome.reason


def _numbers(found: Reported | None) -> dict[str, Any]:
    if found is None:
        return {}
    _, choice, chosen, beside = found
    shares = {"accuracy": chosen.pooled, "clients": chosen.mean, "worst": chosen.worst} if chosen else {}
    shares |= {"best": beside.best.pooled, "last": beside.last.pooled, "own_best": beside.own_best}
    rounds = {"round": choice.record.round, "chosen_by": choice.by} if choice else {}
    return {name: f"{100 * share:.4f}" for name, share in shares.items()} | rounds | {"best_round": beside.best.round}


def _text(findings: Findings, titles: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    profile = findings.profile.stamp or findings.profile.name
    origin = [cut_in_short(findings), findings.protocol.name, profile, __version__, findings.command]
    return csv_lines([[*titles, *ORIGIN], *([*line, *origin] for line in lines)])
