"""Every alignment method against Algorithm 1 written with K×K×d differences: time, memory, energy.

Prototypes are random and not negative, as those of networks that end in a ReLU: uniform between 0 and 1, from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor

from protonorm.geometry.alignment import align, choose, energy

from .differences import align_by_differences
from .results import silent
from .turns import REPEATS, Job, take_turns

COUNTS, DIMENSIONS = (10, 100, 200, 1000, 5000), (64, 512)
LARGEST = 1000  # K of the difference form: at 5,000 one tensor of differences is 51 GB
LIMIT = 300.0  # seconds that one alignment may take
DIFFERENCES = "differences"


def measure(
    notify: Callable[[str], None] = silent,
    counts: Sequence[int] = COUNTS,
    dimensions: Sequence[int] = DIMENSIONS,
    limit: float = LIMIT,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Align prototypes of every size by every method."""
    sizes = product(dimensions, counts)
    return {
        "inputs": "uniform between 0 and 1, float32, seed 0",
        "limit": limit,
        "cases": [_case(count, dimension, notify, limit, repeats) for dimension, count in sizes],
    }


def prototypes(count: int, dimension: int) -> Tensor:
    """Draw the prototypes (K, d) of a case."""
    return torch.rand(count, dimension, generator=torch.Generator().manual_seed(0))


def methods(count: int, dimension: int) -> list[str]:
    """List what is compared: what `auto` chooses is not run a second time under its own name."""
    rivals = ["auto", "paper", *(["descent"] if choose("auto", count, dimension) != "descent" else [])]
    return rivals + ([DIFFERENCES] if count <= LARGEST else [])


def work(method: str, count: int, dimension: int) -> dict[str, Any]:
    """Align once."""
    vectors = prototypes(count, dimension)
    if method == DIFFERENCES:
        points, steps = align_by_differences(vectors)
        return {"steps": steps, "energy": energy(points)}
    aligned = align(vectors, method)
    return {"steps": aligned.steps, "energy": aligned.energy}


def _case(count: int, dimension: int, notify: Callable[[str], None], limit: float, repeats: int) -> dict[str, Any]:
    jobs: dict[str, Job] = {name: (work, (name, count, dimension)) for name in methods(count, dimension)}
    results = take_turns(
        jobs, lambda name: notify(f"alignment: K = {count}, d = {dimension}, {name}"), limit=limit, repeats=repeats
    )
    chosen = choose("auto", count, dimension)
    return {"K": count, "d": dimension, "auto": chosen, "runs": {name: _sum_up(runs) for name, runs in results.items()}}


def _sum_up(runs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    """Take the first run's memory, which is that of a fresh process, and the median of all times."""
    if runs is None or "failed" in runs[0]:
        return runs[0] if runs else None
    first = runs[0]
    seconds = median(run["seconds"] for run in runs if "seconds" in run)
    return {
        "seconds": float(f"{seconds:.3g}"),
        "times": len(runs),
        "megabytes": None if first["megabytes"] is None else round(first["megabytes"]),
        "steps": first["steps"],
        "energy": first["energy"],
    }


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each size and method, headings first."""
    rows = [["K", "d", "method", "steps", "seconds", "against differences", "peak MB", "energy", "above the best"]]
    for case in result["cases"]:
        reached = {name: run for name, run in case["runs"].items() if run and "energy" in run}
        least = min((run["energy"] for run in reached.values()), default=0.0)
        slow = reached.get(DIFFERENCES, {}).get("seconds")
        for name, run in case["runs"].items():
            label = f"auto ({case['auto']})" if name == "auto" else name
            cells = _cells(run, slow, least) if name in reached else _missing(run, result["limit"])
            rows.append([f"{case['K']:,}", str(case["d"]), label, *cells])
    return rows


def _cells(run: dict[str, Any], slow: float | None, least: float) -> list[str]:
    memory = "–" if run["megabytes"] is None else f"{run['megabytes']:,}"
    ratio = "–" if slow is None else _ratio(slow / run["seconds"])
    gap = run["energy"] - least
    return [
        str(run["steps"]),
        f"{run['seconds']:.3g}",
        ratio,
        memory,
        f"{run['energy']:,.2f}".replace("-", "−"),
        "0" if gap <= 1e-9 * abs(least) else f"{gap:.2g}" if gap < 10 else f"{gap:,.0f}",
    ]


def _missing(run: dict[str, Any] | None, limit: float) -> list[str]:
    return ["–", run["failed"] if run else f"over {limit:g}", "–", "–", "–", "–"]


def _ratio(value: float) -> str:
    return f"{value:,.0f}×" if value >= 10 else f"{value:.2g}×"
