"""How much sooner a sweep of small runs ends with runs side by side than with one after the other.

The ways take turns, each a command of its own into a fresh folder, so that a noisy machine slows all of them alike.
What they leave on record must be the same to the byte.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import protonorm

from .results import silent

WORDS = [
    "protonorm", "dataset=fashion", "dataset.samples=1500", "models=light", "clients=5", "rounds=5",
    "algorithm.gamma=100,200,300", "lr=0.01,0.03", "seeds=0,1",
]  # fmt: skip
WAYS = {
    "one after the other, 1 worker": ["--jobs", "1", "--workers", "1"],
    "one after the other, serial": ["--jobs", "1", "--engine", "serial"],
    "one after the other, all cores": ["--jobs", "1"],
    "side by side": [],
}
TURNS = 3
APART = ("timings.jsonl", "provenance.jsonl", "lock")  # files that may differ


def measure(
    notify: Callable[[str], None] = silent, turns: int = TURNS, words: list[str] = WORDS, ways: dict[str, Any] = WAYS
) -> dict[str, Any]:
    """Time each way from the start of the command to its end, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    records: dict[str, str] = {}
    for turn in range(turns):
        for name, options in ways.items():
            notify(f"sweep, turn {turn + 1} of {turns}: {name}")
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(timed([*words, *options], Path(folder)))
                records[name] = digest(Path(folder))
    first = next(iter(ways))
    ratios = [one / other for one, other in zip(seconds[first], seconds["side by side"], strict=True)]
    return {
        "sweep": words,
        "seconds": {name: [round(one, 2) for one in taken] for name, taken in seconds.items()},
        "side by side against 1 worker": round(median(ratios), 2),
        "equal bytes": len(set(records.values())) == 1,
    }


def timed(words: list[str], out: Path) -> float:
    """Run a sweep, and give its seconds."""
    package = str(Path(protonorm.__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "protonorm", "sweep", *words, "--out", str(out)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return time.perf_counter() - start


def digest(root: Path) -> str:
    """Condense all records under a folder, but what depends on how they were made."""
    digest = hashlib.sha256()
    for path in sorted(root.glob("*/**/*")):
        if path.is_file() and path.name not in APART and "sweeps" not in path.relative_to(root).parts:
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each way, headings first."""
    first = next(iter(result["seconds"].values()))
    rows = [
        [name, f"{median(taken):.1f}", f"{median([a / b for a, b in zip(first, taken, strict=True)]):.2f}×"]
        for name, taken in result["seconds"].items()
    ]
    same = "equal bytes" if result["equal bytes"] else "BYTES DIFFER"
    return [[f"12 runs ({same})" if result["sweep"] == WORDS else same, "seconds", "against 1 worker"], *rows]
