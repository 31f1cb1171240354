"""Where the numbers of the page came from, and how far the runs are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protonorm.display import standing
from protonorm.history import Run
from protonorm.report.page.groups import Groups, differences
from protonorm.report.page.words import listed, per_cent

SOURCES = [  # what the page shows, where it is in a run's folder, how it is condensed
    ("Settings, commands, versions", "experiment.json", "as recorded; the command names what differs from defaults"),
    ("Samples of each client and class, majority line", "experiment.json", "counts and majority, as recorded"),
    ("Accuracy: curves, table, clients, classes", "metrics.jsonl", "rules; mean and standard deviation over seeds"),
    ("Distances and margins", "metrics.jsonl", "prototypes; margins are divided by the mean distance of their round"),
    ("Bytes", "metrics.jsonl", "bytes, summed over rounds"),
    ("Sphere", "prototypes/<round>.safetensors", "brought to unit length and projected; angles are those before it"),
    ("Seconds", "timings.jsonl", "as recorded"),
    ("How far a run is", "server.safetensors, failure.json", "committed rounds; why it stopped"),
]


def standings(groups: Groups) -> list[dict[str, Any]]:
    """Say of each run how far it is."""
    return [
        {
            "method": name,
            "seed": run.experiment["seed"],
            "key": run.about["key"],
            "state": _state(run),
            "standing": standing(run),
            "best": per_cent(found["best"]["pooled"]) if (found := run.summary()) else "–",
            "round": found["best"]["round"] if found else "–",
        }
        for name, runs in groups.items()
        for run in runs
    ]


def notices(groups: Groups) -> list[str]:
    """Warn of what a reader could overlook: runs that are not whole, and comparisons of unlike things."""
    told = []
    for name, runs in groups.items():
        for run in runs:
            if not run.finished or run.failure:
                told.append(f"{name}, seed {run.experiment['seed']}: {standing(run)}")
    if unlike := differences(groups):
        told.append(f"These runs differ in more than the method: {listed(unlike)}. Read the comparison with care.")
    versions = {str(run.about.get("versions")) for runs in groups.values() for run in runs}
    if len(versions) > 1:
        told.append("These runs were made with different versions; the list of sources names them.")
    if len({len(runs) for runs in groups.values()}) > 1:
        told.append("The methods have different numbers of seeds.")
    return told


def sources(groups: Groups) -> dict[str, Any]:
    """Name the files, and fingerprint the metrics so that a page can be held against its record."""
    runs = [run for found in groups.values() for run in found]
    return {
        "parts": SOURCES,
        "runs": [
            {
                "folder": run.folder.resolve().name,
                "key": run.about["key"],
                "metrics": fingerprint(run.folder / "metrics.jsonl"),
                "versions": written(run.about.get("versions") or {}),
            }
            for run in runs
        ],
    }


def fingerprint(path: Path) -> str:
    """Condense a file to sixteen characters of its SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "no file"


def written(versions: Mapping[str, Any]) -> str:
    """List versions in a line."""
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def _state(run: Run) -> str:
    return "stopped" if run.failure else "finished" if run.finished else "unfinished"
