"""Rounds, memory and disk with more and more clients, of whom as many take part in each round.

Every client has 64 samples of the embedded pictures; those of different clients may be the same ones. Seconds are
measured in turns, a round of each size at a time; memory and disk in a second run of each size, alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import protonorm as pn
from protonorm.core import Task
from protonorm.core.randomness import cores
from protonorm.data.partitions import Parts
from protonorm.engines.processes import Processes
from protonorm.federation.population import SimulatedPopulation
from protonorm.runs.layout import CLIENTS
from protonorm.session.build import build

from .machine import TreePeak
from .results import silent
from .running import MeasuredRun
from .turns import Rival

SIZES = (20, 100, 1_000, 10_000)
COHORT, SAMPLES, TESTED = 20, 64, 16
WARM_UP, ROUNDS = 3, 10
AGAINST = 100  # clients that the others are compared with
FOLDER_ROUNDS = 100  # rounds of a run whose folder is computed
LIMIT = 3600.0  # seconds that one step may take
SETTINGS: dict[str, Any] = {"dataset": "fashion", "models": "light", "evaluate": "cohort", "partition": "iid"}

_running: dict[str, MeasuredRun] = {}  # in a process of its own: the run whose rounds are asked for one by one


def measure(
    notify: Callable[[str], None] = silent,
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Time rounds of all sizes in turns, then run each size alone."""
    settings = settings or SETTINGS
    with tempfile.TemporaryDirectory() as root:
        times = _in_turns(notify, sizes, rounds, settings, Path(root) / "turns")
        alone = {}
        for size in sizes:
            notify(f"scale: {size} clients, alone")
            rival = Rival((run_alone, (size, rounds, settings, str(Path(root) / f"alone-{size}"))))
            alone[size] = rival.ask(LIMIT) or {}
            rival.close()
    return {
        "settings": settings | {"cohort": COHORT, "samples": SAMPLES},
        "processes": cores(),
        "rounds": rounds,
        "cases": [_case(size, times[size], alone[size]) for size in sizes],
    }


def _in_turns(
    notify: Callable[[str], None], sizes: Sequence[int], rounds: int, settings: dict[str, Any], root: Path
) -> dict[int, list[float]]:
    rivals = {size: Rival((run_round, (size, rounds, settings, str(root / str(size))))) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(WARM_UP + rounds):
        notify(f"scale: round {turn + 1} of {WARM_UP + rounds} of each size")
        for size, rival in rivals.items():
            times[size].append((rival.ask(LIMIT) or {"round": float("nan")})["round"])
    for rival in rivals.values():
        rival.close()
    return {size: seconds[WARM_UP:] for size, seconds in times.items()}


def _case(size: int, seconds: Sequence[float], alone: dict[str, Any]) -> dict[str, Any]:
    kept = {name: alone.get(name) for name in ("start", "peak", "record", "states", "record a round")}
    return {"clients": size, "seconds": [round(duration, 4) for duration in seconds]} | kept


def run_round(size: int, rounds: int, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """Run the next round of a run that goes on as long as this process."""
    if folder not in _running:
        _running[folder] = start(size, rounds, settings, folder)
    return {"round": _running[folder].round_and_commit()}


def run_alone(size: int, rounds: int, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """Run all rounds; give the peak of memory, children included, and the bytes on the disk."""
    run_start = time.perf_counter()
    with TreePeak() as peak:
        run = start(size, rounds, settings, folder)
        started = time.perf_counter() - run_start
        sizes = []
        for _ in range(WARM_UP + rounds):
            run.round()
            sizes.append(folder_bytes(Path(folder), states=False))
        run.close()
    record, states = folder_bytes(Path(folder), states=False), folder_bytes(Path(folder), states=True)
    shutil.rmtree(folder)
    growth = (sizes[-1] - sizes[0]) / max(1, len(sizes) - 1)
    return {"peak": peak.megabytes, "record": record, "states": states, "record a round": growth} | {
        "start": round(started, 2)
    }


def start(size: int, rounds: int, settings: dict[str, Any], folder: str) -> MeasuredRun:
    """Begin a run of so many clients."""
    share = {"clients": size, "participation": COHORT / size, "rounds": WARM_UP + rounds}
    return MeasuredRun(settings | share, Path(folder), Processes, make=with_shards)


def with_shards(experiment: pn.Experiment) -> tuple[Task, SimulatedPopulation]:
    """Assign each client samples of its own choice; clients may share some."""
    task, population = build(pn.Experiment.of(experiment.model_dump(mode="json") | {"clients": 1, "evaluate": "all"}))
    parts = shards(len(population.dataset.labels), experiment.clients)
    return task, SimulatedPopulation(task, population.dataset, parts, population.networks, population.training)


def shards(samples: int, clients: int) -> Parts:
    """Draw 64 different positions for each client, 48 to train on and 16 to test with."""
    random = np.random.default_rng(0)
    order, first = random.permutation(samples), random.integers(samples, size=(clients, 1))
    index = order[(first + np.arange(SAMPLES)) % samples].ravel()  # (64 M,)
    cuts = (np.arange(clients)[:, None] * SAMPLES + [0, SAMPLES - TESTED]).ravel()  # (2 M,)
    return Parts(index, np.append(cuts, len(index)))


def folder_bytes(folder: Path, *, states: bool) -> int:
    """Count the bytes of a run's folder: the clients' states, or all the rest."""
    inside = [(path, CLIENTS in path.relative_to(folder).parts) for path in folder.rglob("*") if path.is_file()]
    return sum(os.stat(path).st_size for path, is_state in inside if is_state == states)


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each number of clients, headings first."""
    head = ["clients", "start, s", "seconds a round", "against 100 clients", "peak MB", "against 100 clients"]
    head += ["record, MB", f"after {FOLDER_ROUNDS} rounds, MB", "states, MB"]
    base = next((case for case in result["cases"] if case["clients"] == AGAINST), result["cases"][0])
    return [head, *(_row(case, base, result["rounds"]) for case in result["cases"])]


def _row(case: dict[str, Any], base: dict[str, Any], rounds: int) -> list[str]:
    seconds, reference = median(case["seconds"]), median(base["seconds"])
    peak = "–" if case["peak"] is None else f"{case['peak']:,.0f}"
    grown = "–" if None in (case["peak"], base["peak"]) else f"{case['peak'] / base['peak']:.2f}×"
    later = case["record"] + (FOLDER_ROUNDS - WARM_UP - rounds) * case["record a round"]
    return [
        f"{case['clients']:,}",
        f"{case['start']:.1f}",
        f"{seconds:.2f}",
        f"{seconds / reference:.2f}×",
        peak,
        grown,
        *(f"{size / 1e6:.1f}" for size in (case["record"], later, case["states"])),
    ]
