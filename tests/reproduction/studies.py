"""Small tables and runs for tests of the reproduction."""

from typing import Any

from protonorm.history import Run
from protonorm.reproduction.cells import Cell, Column, Printed
from protonorm.reproduction.choosing import narrowed
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.profiles import PROFILES
from protonorm.reproduction.running import Reproduction
from protonorm.reproduction.study import Study

TINY = {
    "dataset": {"name": "spiral", "points": 20},
    "partition": "iid",
    "clients": 2,
    "rounds": 1,
    "batch_size": 8,
    "models": "mlp",
}
COLUMNS = (Column("one", "Group"), Column("two", "Group"))


def small_study(**more: Any) -> Study:
    """Two methods on two small settings; nothing here takes a second."""
    cells = [
        Cell(row, column.place, TINY | {"algorithm": row.lower(), "lr": lr})
        for row in ("ProtoNorm", "FedProto", "Local")
        for column, lr in zip(COLUMNS, (0.01, 0.02), strict=True)
    ]
    usual: dict[str, Any] = {
        "name": "small",
        "title": "A small table",
        "cells": cells,
        "columns": COLUMNS,
        "rows": ("ProtoNorm", "FedProto"),
        "beside": ("Local",),
        "paper": {("ProtoNorm", "Group: one"): Printed(47.41, 0.4), ("FedProto", "Group: two"): Printed(None)},
    }
    return Study(**usual | more)


def task(tmp_path, study=None, profile="paper", seeds=(0,), only=(), command="") -> Reproduction:
    """Prepare to reproduce the small table in a folder of its own."""
    return Reproduction(
        narrowed([study or small_study()], only),
        PROFILES[profile],
        tmp_path / "runs",
        tmp_path / "out",
        command or "protonorm reproduce small",
        list(seeds),
    )


def fake_run(accuracy: float | None, *, rounds: int = 1, done: int = 1, rules=("global", "local"), failure=None) -> Run:
    """Make the record of a run that never was: `accuracy` in parts of one under each rule."""
    value = {"pooled": accuracy, "mean": accuracy, "worst": accuracy, "clients": [accuracy]}
    history = [{"round": number + 1, "rules": dict.fromkeys(rules, value)} for number in range(done)]
    about = {"experiment": {"rounds": rounds}, "headline": rules[0], "rules": list(rules), "versions": {}}
    return Run(None, about, history, failure)  # type: ignore[arg-type]


def fake_findings(study: Study, accuracies: dict[tuple[str, str], Any], profile: str = "paper") -> Findings:
    """Give the cells of a study these accuracies, or runs, or reasons why there is none; one a seed."""
    outcomes = []
    for cell in study.cells:
        given = accuracies.get((cell.row, cell.column))
        for seed, one in enumerate(given if isinstance(given, list) else [given]):
            run = one if isinstance(one, Run) else fake_run(one) if isinstance(one, float) else None
            missing = one if isinstance(one, str) else ""
            outcomes.append(Outcome(cell, seed, None, None if missing else f"key{seed}", run, missing))
    return Findings(study, PROFILES[profile], tuple(outcomes), "protonorm reproduce small")
