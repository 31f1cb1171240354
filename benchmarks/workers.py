"""How much sooner a round ends with two worker processes than with one, and what serial costs beside them.

The three take turns, a few rounds each, so that a noisy machine slows all of them alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from protonorm.core import one_thread
from protonorm.engines.processes import Processes
from protonorm.engines.serial import Serial

from .results import silent
from .running import MeasuredRun

EXPERIMENT: dict[str, Any] = {"dataset": "fashion", "models": "light", "clients": 20, "rounds": 12}
WAYS: dict[str, tuple[Any, int | None]] = {
    "serial": (Serial, None),
    "1 worker": (Processes, 1),
    "2 workers": (Processes, 2),
}
WARM_UP = 2  # rounds before the measured ones: the balance learns costs from them


def measure(notify: Callable[[str], None] = silent, rounds_each: int = EXPERIMENT["rounds"]) -> dict[str, Any]:
    """Time the rounds of each way, in turns."""
    notify(f"workers: {rounds_each} rounds each of {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as root, one_thread():
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        runs = {
            name: MeasuredRun(EXPERIMENT, Path(root) / name.replace(" ", "-"), *engine) for name, engine in WAYS.items()
        }
        for _ in range(rounds_each):
            for name, run in runs.items():
                seconds[name].append(run.round())
        for run in runs.values():
            run.close()
    typical = {name: round(median(values[WARM_UP:] or values), 3) for name, values in seconds.items()}
    return {
        "experiment": EXPERIMENT,
        "seconds a round": typical,
        "2 workers against 1": round(typical["1 worker"] / typical["2 workers"], 2),
        "1 worker against serial": round(typical["serial"] / typical["1 worker"], 2),
    }


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each way, headings first."""
    seconds = result["seconds a round"]
    rows = [[name, f"{value:.2f}", f"{seconds['1 worker'] / value:.2f}×"] for name, value in seconds.items()]
    return [["", "seconds a round", "against 1 worker"], *rows]
