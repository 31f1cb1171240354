"""Where the numbers of the page came from, how far the runs are, and what a reader must know of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protonorm.analysis.summaries import standing
from protonorm.report.page.groups import Groups, differences
from protonorm.report.page.text import counted, listed, per_cent
from protonorm.runs import layout
from protonorm.runs.reader import Run

SOURCES = [  # what the page shows, where it is in a run's folder, how it is condensed
    ("Settings, commands, versions", layout.INFO, "as recorded; a command names the settings that the user gave"),
    ("Samples of each client and class", layout.POPULATION, "as recorded; the majority line follows from them"),
    ("Accuracy: curves and table", layout.METRICS, "rules; mean and standard deviation over seeds"),
    ("Accuracy of clients and classes", layout.EVALUATIONS, "right answers divided by samples"),
    ("Distances", layout.METRICS, "prototypes, as recorded"),
    ("Margins", layout.EVALUATIONS, "divided by the mean distance of their round"),
    ("Bytes", layout.METRICS, "bytes, summed over rounds"),
    ("Sphere", "prototypes/<round>.safetensors", "brought to unit length and projected; angles are those before it"),
    ("Seconds", layout.TIMINGS, "as recorded"),
    ("How far a run is", f"{layout.SERVER}, {layout.FAILURE}", "committed rounds; why it stopped"),
]
ROUNDS = 4  # named in a notice; of more, the first ones


def standings(groups: Groups) -> list[dict[str, Any]]:
    """Say of each run how far it is."""
    return [
        {
            "method": name,
            "seed": run.info.experiment.seed,
            "key": run.info.key,
            "state": _state(run),
            "standing": standing(run),
            "best": per_cent(found.best.pooled) if (found := run.summary()) else "–",
            "round": found.best.round if found else "–",
        }
        for name, runs in groups.items()
        for run in runs
    ]


def notices(groups: Groups) -> list[str]:
    """Warn of what a reader could overlook: runs that are not whole, and comparisons of unlike things."""
    named = [(f"{name}, seed {run.info.experiment.seed}", run) for name, runs in groups.items() for run in runs]
    told = [f"{name}: {standing(run)}" for name, run in named if not run.finished or run.failure]
    told += [f"{name}: {lost}" for name, run in named if (lost := lost_clients(run))]
    told += [f"{name}: {partial}" for name, run in named if (partial := partly_evaluated(run))]
    if unlike := differences(groups):
        told.append(f"These runs differ in more than the method: {listed(unlike)}. Read the comparison with care.")
    if len({_versions(run.info.versions) for _, run in named}) > 1:
        told.append("These runs were made with different versions; the list of sources names them.")
    if len({len(runs) for runs in groups.values()}) > 1:
        told.append("The methods have different numbers of seeds.")
    return told


def lost_clients(run: Run) -> str:
    """Say in which rounds clients did not reply, and why one of them did not; nothing if all did."""
    rounds = [record for record in run.rounds if record.lost]
    if not rounds:
        return ""
    id, reason = next(iter(rounds[0].lost.items()))
    replies = counted(sum(len(record.lost) for record in rounds), "reply", "replies")
    numbers = listed([str(record.round) for record in rounds], ROUNDS)
    where = f"round{'' if len(rounds) == 1 else 's'} {numbers}"
    return f"{replies} did not arrive, in {where}. The first was that of client {id}: {reason.rstrip('.')}."


def partly_evaluated(run: Run) -> str:
    """Say in how many rounds a part of the clients was evaluated; nothing if it was always everybody."""
    evaluated = [record for record in run.rounds if record.rules]
    partial = sum("ids" in run.arrays(record) for record in evaluated)
    where = "every round" if partial == len(evaluated) else f"{partial} of {len(evaluated)} evaluated rounds"
    return f"In {where} only a part of the clients was evaluated; accuracies are theirs." if partial else ""


def sources(groups: Groups) -> dict[str, Any]:
    """Name the files, and fingerprint the metrics so that a page can be compared with its record."""
    runs = [run for found in groups.values() for run in found]
    return {
        "parts": SOURCES,
        "runs": [
            {
                "folder": run.folder.resolve().name,
                "key": run.info.key,
                "metrics": _fingerprint(run.folder / layout.METRICS),
                "versions": _versions(run.info.versions),
            }
            for run in runs
        ],
    }


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "no file"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def _state(run: Run) -> str:
    return "stopped" if run.failure else "finished" if run.finished else "unfinished"
