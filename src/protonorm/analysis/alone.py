"""The run in which the same clients trained alone: that of Local with the same settings. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from protonorm.analysis.labels import flatten_settings
from protonorm.analysis.pairing import is_local, pair_runs
from protonorm.analysis.reading import UNREADABLE, read_whole
from protonorm.runs.info import read_info
from protonorm.runs.layout import INFO, find_runs
from protonorm.runs.run import Run
from protonorm.runs.schema import RunInfo

APART = ("algorithm", "auxiliary", "control", "rounds", "retries", "quorum", "deadline")  # in which the two may differ


def matching_local(run: Run, local: Sequence[Run]) -> Run | None:
    """Find the run of Local with the same seed and clients, whose round was chosen in the same way."""
    if is_local(run):
        return None
    ways = {id(one): one.chosen.by if one.chosen else "" for one in (run, *local)}
    fitting = (one for one in local if ways[id(one)] == ways[id(run)] and not pair_runs([run], [one]).mismatch)
    return next(fitting, None)


def locals_in(root: Path) -> dict[Path, RunInfo]:
    """Find the runs of Local in a folder of runs; damaged ones are passed over."""
    found: dict[Path, RunInfo] = {}
    for folder in find_runs(root):
        with suppress(*UNREADABLE):
            info = read_info(folder / INFO)
            found |= {folder: info} if info.experiment.algorithm.name == "local" else {}
    return found


def local_beside(run: Run, known: Mapping[Path, RunInfo] | None = None) -> Run | None:
    """Find, beside a run or among those that are known, one of Local with the same settings and enough rounds."""
    if is_local(run):
        return None
    found = []
    for folder, info in (locals_in(run.folder.parent) if known is None else known).items():
        if _settings(info) == _settings(run.info):
            with suppress(*UNREADABLE):
                found.append(read_whole(folder, run.info.experiment.rounds))
    needed = run.info.experiment.rounds
    return matching_local(run, [one for one in found if len(one.rounds) >= needed or one.stopped_early])


def _settings(info: RunInfo) -> dict[str, Any]:
    plain = info.experiment.plain()
    return flatten_settings({name: value for name, value in plain.items() if name not in APART})
