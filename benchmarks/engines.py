"""Whole rounds on every engine: serial, two worker processes, and two actors of Ray where it is installed.

The engines take turns, a round each, so that a noisy machine slows all of them alike; their records must be equal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from protonorm.core import one_thread
from protonorm.engines import ENGINES
from protonorm.runs.layout import EVALUATIONS, METRICS

from .results import silent
from .running import MeasuredRun

EXPERIMENT: dict[str, Any] = {"dataset": "fashion", "models": "light", "clients": 20}
WAYS: dict[str, tuple[str, int | None]] = {  # in the table: (name in the registry, workers)
    "serial": ("serial", None),
    "2 processes": ("processes", 2),
    "Ray, 2 actors": ("ray", 2),
}
WARM_UP, ROUNDS = 2, 10  # rounds before the measured ones: the balance learns costs from them


def measure(
    notify: Callable[[str], None] = silent, rounds: int = ROUNDS, settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Time the rounds of each engine, in turns."""
    settings = (settings or EXPERIMENT) | {"rounds": WARM_UP + rounds}
    engines = available(notify)
    with tempfile.TemporaryDirectory() as root, one_thread():
        folders = {name: Path(root) / str(position) for position, name in enumerate(engines)}
        runs = {
            name: MeasuredRun(settings, folders[name], ENGINES[engine].load(), workers)
            for name, (engine, workers) in engines.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(WARM_UP + rounds):
            notify(f"engines: round {number + 1} of {WARM_UP + rounds} on {', '.join(engines)}")
            for name, run in runs.items():
                seconds[name].append(run.round_and_commit())
        for run in runs.values():
            run.close()
        records = {
            b"".join((folder / name).read_bytes() for name in (METRICS, EVALUATIONS)) for folder in folders.values()
        }
    measured = {name: [round(duration, 4) for duration in times[WARM_UP:]] for name, times in seconds.items()}
    return {"settings": settings, "seconds": measured, "equal records": len(records) == 1}


def available(notify: Callable[[str], None]) -> dict[str, tuple[str, int | None]]:
    """Leave out engines whose packages are not installed, and say so."""
    choices = {}
    for name, (engine, workers) in WAYS.items():
        extra = ENGINES[engine].details.get("extra") if engine in ENGINES else engine
        if extra and find_spec(extra) is None:
            notify(f"engines: without {name}, which needs the package {extra}")
        elif engine in ENGINES:
            choices[name] = (engine, workers)
    return choices


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each engine, headings first; ratios are the middle one of the turns, each within its turn."""
    serial = result["seconds"]["serial"]
    rows = [
        [name, f"{median(seconds):.2f}", f"{median(a / b for a, b in zip(serial, seconds, strict=True)):.2f}×"]
        for name, seconds in result["seconds"].items()
    ]
    equal = "equal records" if result["equal records"] else "records DIFFER"
    return [[f"engine ({equal})", "seconds a round", "times as fast as serial"], *rows]
