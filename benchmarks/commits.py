"""The commit of a round in a long run of tiny rounds: the first hundred against the last, and the memory there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from protonorm.core import one_thread
from protonorm.engines.serial import Serial

from .machine import memory
from .results import silent
from .running import MeasuredRun
from .turns import Rival

ROUNDS, PART = 2000, 100
LIMIT = 7200.0  # seconds that the run may take
EXPERIMENT: dict[str, Any] = {
    "dataset": {"name": "spiral", "points": 60},
    "partition": {"name": "dirichlet", "alpha": 0.3, "least": 4},
    "clients": 6,
    "batch_size": 8,
    "early_stopping": 10**6,  # patience is counted, and never lost
}


def measure(notify: Callable[[str], None] = silent, rounds: int = ROUNDS, part: int = PART) -> dict[str, Any]:
    """Time the commits of a run, in a process of its own."""
    notify(f"commits: {rounds} rounds")
    rival = Rival((work, (rounds, part)))
    answer = rival.ask(LIMIT) or {"failed": f"it took more than {LIMIT:g} seconds"}
    rival.close()
    return {"experiment": EXPERIMENT, "rounds": rounds, "part": part} | answer


def work(rounds: int, part: int) -> dict[str, Any]:
    """Run all rounds; give the median seconds of a commit, and the memory in MB, in the first and in the last ones."""
    with tempfile.TemporaryDirectory() as root, one_thread():
        run = MeasuredRun(EXPERIMENT | {"rounds": rounds}, Path(root) / "run", Serial)
        seconds, memory_used = [], []
        for _ in range(rounds):
            seconds.append(run.commit())
            memory_used.append(memory("VmRSS"))
        run.close()
    return {
        "first": round(median(seconds[:part]), 6),
        "last": round(median(seconds[-part:]), 6),
        "memory": {"first": memory_used[part - 1], "last": memory_used[-1]},
    }


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show the first and the last rounds, and their ratio, headings first."""
    part, memory = result["part"], result["memory"]
    head = [f"of {result['rounds']:,} rounds", "commit, ms", "against the first", "memory, MB", "against the first"]
    rows = []
    for name in ("first", "last"):
        measured = memory[name] is not None
        memories = [f"{memory[name]:,.0f}", f"{memory[name] / memory['first']:.2f}×"] if measured else ["–", "–"]
        times = [f"{1000 * result[name]:.2f}", f"{result[name] / result['first']:.2f}×"]
        rows.append([f"the {name} {part}", *times, *memories])
    return [head, *rows]
