"""How much sooner a round ends with two worker processes than with one, and what serial costs beside them.

The three take turns, a few rounds each, so that a noisy machine slows all of them alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import protonorm as pn
from protonorm.core import one_thread
from protonorm.engines.processes import Processes
from protonorm.engines.serial import Serial
from protonorm.federation import begin, rounds
from protonorm.record import Record
from protonorm.setup import Setup

from .results import silent

EXPERIMENT = {"dataset": "fashion", "models": "light", "clients": 20, "rounds": 12}
WAYS = {"serial": (Serial, None), "1 worker": (Processes, 1), "2 workers": (Processes, 2)}
WARM_UP = 2  # rounds before the measured ones: the balance learns costs from them


def measure(tell: Callable[[str], None] = silent, rounds_each: int = EXPERIMENT["rounds"]) -> dict[str, Any]:
    """Time the rounds of each way, in turns."""
    tell(f"workers: {rounds_each} rounds each of {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as root, one_thread():
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        parts = {name: _start(Path(root) / name.replace(" ", "-"), *way) for name, way in WAYS.items()}
        for _ in range(rounds_each):
            for name, (going, _) in parts.items():
                seconds[name].append(next(going).seconds["round"])
        for _, engine in parts.values():
            engine.close()
    typical = {name: round(median(values[WARM_UP:] or values), 3) for name, values in seconds.items()}
    return {
        "experiment": EXPERIMENT,
        "seconds a round": typical,
        "2 workers against 1": round(typical["1 worker"] / typical["2 workers"], 2),
        "1 worker against serial": round(typical["serial"] / typical["1 worker"], 2),
    }


def _start(folder: Path, engine: Any, workers: int | None) -> tuple[Any, Any]:
    experiment = pn.Experiment.of(EXPERIMENT)
    setup = Setup(experiment)
    record = Record(folder, experiment.key, experiment.rounds).__enter__()
    record.describe({"experiment": {}})
    record.resume()
    running = engine(setup, record.states, workers)
    return rounds(setup, running, record, begin(setup)), running


def table(found: dict[str, Any]) -> list[list[str]]:
    """Show a line for each way, headings first."""
    seconds = found["seconds a round"]
    rows = [[name, f"{value:.2f}", f"{seconds['1 worker'] / value:.2f}×"] for name, value in seconds.items()]
    return [["", "seconds a round", "against 1 worker"], *rows]
