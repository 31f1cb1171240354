"""All numbers of a table for machines: one line for each cell, seed and rule. Nothing here needs torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from protonorm import __version__
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.table import Table

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
    printed = findings.study.paper.get(outcome.place) if findings.profile.beside else None
    run = outcome.run
    common: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "row": outcome.cell.row,
        "column": outcome.cell.column,
        "seed": outcome.seed,
        "state": outcome.state,
        "key": outcome.key or "",
        "note": outcome.reason or (f"round {run.failure['round']}" if run and run.failure else ""),
    }
    if printed:
        common |= {"paper": "-" if printed.mean is None else printed.mean, "paper_std": printed.std or ""}
    if run is None:
        return [common]
    lines = []
    for rule in run.about["rules"]:
        found = run.summary(rule)
        numbers = {} if found is None else {
            "best": found["best"]["pooled"], "last": found["last"]["pooled"], "clients": found["best"]["mean"],
            "worst": found["best"]["worst"], "own_best": found["own_best"],
        }  # fmt: skip
        shown = {name: f"{100 * number:.4f}" for name, number in numbers.items()}
        shown |= {"best_round": found["best"]["round"]} if found else {}
        lines.append(common | shown | {"rule": rule, "headline": rule == run.about["headline"]})
    return lines


def _text(findings: Findings, titles: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    profile = findings.profile.name if findings.profile.beside else findings.profile.name.upper()
    origin = [profile, __version__, findings.command]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*titles, *ORIGIN])
    writer.writerows([*line, *origin] for line in lines)
    return text.getvalue()
