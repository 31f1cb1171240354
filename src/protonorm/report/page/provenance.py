"""Where the numbers of the page came from: the files, and how the runs were made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protonorm.report.page.groups import Groups
from protonorm.report.page.text import counted
from protonorm.runs import layout
from protonorm.runs.packed import TEXT, read_either
from protonorm.runs.run import Run
from protonorm.runs.schema import Provenance

Facts = tuple[tuple[str, str], ...]  # (what, its value)

SOURCES = [  # what the page shows, where it is in a run's folder, how it is condensed
    ("Settings, commands, versions", layout.INFO, "as recorded; a command names the settings that the user gave"),
    ("How the runs were made", layout.PROVENANCE, "as recorded when a run began or went on"),
    ("Samples of each client and class", layout.POPULATION, "as recorded; the majority line follows from them"),
    (
        "Reported round",
        layout.METRICS,
        "the best mean validation accuracy under the headline rule; without, the best test",
    ),
    ("Accuracy and measures: tables", layout.METRICS, "rules; mean and half of the 95 % interval over seeds"),
    ("Accuracy: curves", layout.METRICS, "rules; mean and standard deviation over seeds"),
    ("Accuracy of clients and classes", layout.EVALUATIONS, "right answers divided by samples"),
    ("Who gains, who loses", layout.EVALUATIONS, "accuracy of a client minus that of the same client in the reference"),
    ("Distances", layout.METRICS, "prototypes, as recorded"),
    ("Margins", layout.EVALUATIONS, "divided by the mean distance of their round"),
    ("Bytes", layout.METRICS, "bytes, summed over rounds"),
    ("Sphere", "prototypes/<round>.safetensors", "brought to unit length and projected; angles are those before it"),
    ("Seconds", layout.TIMINGS, "as recorded"),
    ("How far a run is", f"{layout.SERVER}, {layout.FAILURE}", "committed rounds; why it stopped"),
]


def origins(groups: Groups) -> list[dict[str, Any]]:
    """Say how runs were made: the command, the user's commit, versions and machine; equal runs share an entry."""
    found: dict[tuple[Facts, ...], list[str]] = {}
    for runs in groups.values():
        for run in runs:
            found.setdefault(_starts(run), []).append(run.info.key)
    return [{"runs": keys, "starts": [list(facts) for facts in starts]} for starts, keys in found.items() if starts]


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


def _starts(run: Run) -> tuple[Facts, ...]:
    """Say how the rounds were made each time the run was begun or went on; a start that led to no round is left out."""
    last = {one.done: one for one in run.starts}
    led = [one for one in last.values() if one.done < len(run.rounds)] or list(last.values())[-1:]
    return tuple(_facts(one, several=len(led) > 1) for one in led)


def _facts(made: Provenance, *, several: bool) -> Facts:
    facts = {
        "command": made.command,
        "commit": _commit(made.commit, made.dirty),
        "versions": _versions(made.versions),
        "processor": f"{made.cpu}, {counted(made.cores, 'core')}",
        "threads": f"{made.threads} in each process",
        "engine": made.engine,
        "device": made.device,
        "platform": made.platform,
    }
    return (*([("from round", str(made.done + 1))] if several else []), *facts.items())


def _commit(commit: str | None, dirty: bool | None) -> str:
    if commit is None:
        return "no repository"
    state = {True: ", with changes that were not committed", False: ", nothing changed since"}
    return commit if dirty is None else f"{commit}{state[dirty]}"


def _fingerprint(path: Path) -> str:
    content = read_either(path, TEXT)  # the same, packed or not
    return "no file" if content is None else hashlib.sha256(content).hexdigest()[:16]


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())
