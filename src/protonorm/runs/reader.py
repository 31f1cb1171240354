"""Read the record of a run, all of it typed and checked. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path

from protonorm.files import damaged, unsealed
from protonorm.runs import layout
from protonorm.runs.choice import has_stopped
from protonorm.runs.info import read_info, typed
from protonorm.runs.layout import committed, refuse_rounds_without
from protonorm.runs.packed import found_path, read_either_lines
from protonorm.runs.run import Run
from protonorm.runs.schema import Failure, RoundRecord
from protonorm.runs.standing import counted_rounds


def read_run(folder: Path, rounds: int | None = None) -> Run:
    """Read a run's folder; of a run that has more rounds than asked for, the first so many.

    One that ended early is the same run whatever number of rounds beyond its end is asked for.
    """
    if not (folder / layout.INFO).exists():
        raise ValueError(f"{folder} is not a run: it has no {layout.INFO}.")
    info = read_info(folder / layout.INFO)
    found, failure = _read_rounds(folder, info.key), _read_failure(folder)
    counted = counted_rounds(info, found)
    ended = has_stopped(counted, info.headline, info.early_stopping)  # more rounds would change nothing
    if rounds is not None and (rounds < info.experiment.rounds or ended):
        asked = {"experiment": info.experiment.model_copy(update={"rounds": rounds})}
        info = info.model_copy(update=asked | {"changed": info.changed | {"rounds": rounds}})
        found, failure = found[:rounds], failure if failure and failure.round <= rounds else None
    return Run(folder, info, found, failure)


def _read_rounds(folder: Path, key: str) -> list[RoundRecord]:
    path, before = found_path(folder / layout.METRICS), (folder / layout.PENDING).exists()
    done = committed(folder)  # a run at work adds a line first and then commits it
    if not done:
        refuse_rounds_without(folder, layout.SERVER)
    lines = read_either_lines(folder / layout.METRICS)
    waits = before or (folder / layout.PENDING).exists()  # the last committed round, for its evaluation
    if len(lines) < done - waits:
        raise damaged(path, f"{len(lines)} lines for {done} committed rounds")
    found = [typed(RoundRecord, unsealed(line, path, owner=key), path) for line in lines[:done]]
    for number, record in enumerate(found, 1):
        if record.round != number:
            raise damaged(path, f"line {number} is that of round {record.round}")
    return found


def _read_failure(folder: Path) -> Failure | None:
    path = folder / layout.FAILURE
    return typed(Failure, unsealed(path.read_bytes(), path, pretty=True), path) if path.exists() else None
