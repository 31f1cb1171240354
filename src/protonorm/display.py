"""What the command line shows of runs. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from protonorm.comparison import rows
from protonorm.history import Run
from protonorm.tables import comparison_table, curve


def run_table(run: Run) -> Table:
    """Show one run's accuracy under every rule, beside the majority."""
    return comparison_table(run.about["key"], rows({run.experiment["algorithm"]["name"]: [run]}))


def run_lines(run: Run) -> str:
    """Show one run's curve, how it stands, and its settings."""
    rule = run.about["headline"]
    values = [line["rules"].get(rule) for line in run.history]
    lines = [
        f"Pooled accuracy in per cent, rule {rule}:",
        curve([value["pooled"] if value else None for value in values]),
        standing(run),
        *(f"{name}: {json.dumps(value)}" for name, value in run.experiment.items()),
        f"versions: {json.dumps(run.about.get('versions'))}",
    ]
    return "\n".join(lines)


def standing(run: Run) -> str:
    """Say how far a run is."""
    done, rounds = len(run.history), run.experiment["rounds"]
    if run.failure:
        return f"Stopped in round {run.failure['round']}: {run.failure['reason']}"
    return f"{done} of {rounds} rounds are done" + ("." if run.finished else "; the same command goes on.")


def headline(runs: Mapping[str, Sequence[Run]]) -> str:
    """Say what all runs of a comparison have in common."""
    first = next(iter(runs.values()))[0].experiment
    deal = dict(first["partition"])
    name = deal.pop("name")
    settings = ", ".join(f"{key} {value}" for key, value in deal.items() if key in ("alpha", "classes_per_client"))
    dealt = f"{name} ({settings})" if settings else name
    return f"{first['dataset']['name']}, {dealt}, {first['clients']} clients, {first['rounds']} rounds"


def comparison_folder(runs: Mapping[str, Sequence[Run]], root: Path) -> Path:
    """Say where the figures and the report of a comparison go."""
    keys = "\n".join(run.about["key"] for found in runs.values() for run in found)
    return root / "comparisons" / hashlib.sha256(keys.encode()).hexdigest()[:10]


def draw_comparison(runs: Mapping[str, Sequence[Run]], folder: Path) -> list[Path]:
    """Write the figures of a comparison: accuracy over rounds, and who holds what."""
    from protonorm.report.figures import accuracy_curves, heat_map, save_figure  # slow to import

    first = next(iter(runs.values()))[0]
    return [
        save_figure(accuracy_curves(runs), folder / "accuracy.png"),
        save_figure(heat_map(first), folder / "partition.png"),
    ]


def plain_run(run: Run) -> dict[str, Any]:
    """Give a run to machines, without its history."""
    return {
        "key": run.about["key"],
        "folder": str(run.folder),
        "experiment": run.experiment,
        "rounds": len(run.history),
        "finished": run.finished,
        "headline": run.about["headline"],
        "summary": {rule: run.summary(rule) for rule in run.about["rules"]},
        "majority": run.about["majority"],
        "failure": run.failure,
    }
