"""Where things are in a run's folder, and how far a run is. Nothing here needs torch.

experiment.json         settings, rules, networks, classes, versions
population.safetensors  samples of each client and class
metrics.jsonl           one line a round; no time, no host: equal for equal experiments
evaluations.bin         arrays of each round: counts by client and by class, margins
timings.jsonl           seconds a round
server.safetensors      what the server remembers and last said; its rename commits a round
chosen.safetensors      the same after the best round so far by validation, if that is not the last one
clients/ID.ROUND.safetensors    what a client remembers after the last round it trained in, and as of the best round
prototypes/ROUND.safetensors    the global prototypes, at up to 50 evenly spaced rounds
figures.safetensors     arrays for the figures, such as the first alignment's distances
pending.json            in a real federation, what is known of a committed round whose evaluation is still to come
failure.json            why and where a run stopped, if it did
provenance.jsonl        command, commit, versions and machine, each time the run is begun or goes on
lock                    held by the process that is at work on the run

The record of a run that was archived has no lock, and no networks and prototypes unless they were asked for, but

archived.json           how many rounds it has
metrics.jsonl.xz, evaluations.bin.xz    in place of the files without .xz

Every file has a checksum inside, every line and every block of arrays one of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from protonorm.files import HEADER, damaged, read_json, unsealed
from protonorm.runs.packed import is_packed, packed_path, read_either_lines

INFO = "experiment.json"
POPULATION = "population.safetensors"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.bin"
TIMINGS = "timings.jsonl"
SERVER = "server.safetensors"
CHOSEN = "chosen.safetensors"
CLIENTS = "clients"
PROTOTYPES = "prototypes"
FIGURES = "figures.safetensors"
PENDING = "pending.json"
FAILURE = "failure.json"
PROVENANCE = "provenance.jsonl"
ARCHIVED = "archived.json"
LOCK = "lock"

SNAPSHOTS = 50  # rounds at most whose prototypes are kept


def stamp(key: str, what: str, round: int) -> str:
    """Say what a tensor file holds: of which run, of whom, after which round."""
    return f"{key} {what} {round}"


def snapshot_rounds(done: int) -> set[int]:
    """Choose the rounds whose prototypes are kept once so many are done: the first, and multiples of a power of two.

    They depend on what is done, not on what is still to come: a run that goes on later keeps what an unbroken one does.
    """
    stride = 1
    while done // stride >= SNAPSHOTS:
        stride *= 2
    return ({1} if done else set()) | set(range(stride, done + 1, stride))


def leftovers(folder: Path) -> Iterator[Path]:
    """List the files that a killed process was writing beside their places: those of ours, and no others."""
    names = "|".join(re.escape(name) for name in (INFO, POPULATION, SERVER, CHOSEN, FIGURES, PENDING, FAILURE))
    places = {folder: names, folder / CLIENTS: r"\d+\.\d+\.safetensors", folder / PROTOTYPES: r"\d+\.safetensors"}
    for place, kinds in places.items():
        for path in place.glob(".*"):
            if re.fullmatch(rf"\.({kinds})\.\d+", path.name) and path.is_file():
                yield path


def committed(folder: Path) -> int:
    """Tell how many rounds of a run are committed: the stamp of the server's file says it, or what was archived."""
    path = folder / SERVER
    if not path.exists():
        return archived_rounds(folder)
    try:
        with path.open("rb") as file:
            size = min(int.from_bytes(file.read(HEADER), "little"), path.stat().st_size)
            stamped = json.loads(file.read(size))["__metadata__"]["stamp"]
        return int(stamped.rsplit(" ", 2)[1])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise damaged(path, "it is not a whole state file of protonorm") from error


def is_archived(folder: Path) -> bool:
    """Tell whether a folder is the archived record of a run, also one that has lost a file."""
    return (folder / ARCHIVED).exists() or any(is_packed(folder / name) for name in (METRICS, EVALUATIONS))


def archived_rounds(folder: Path) -> int:
    """Tell how many rounds of a run were archived; 0 if it was not. What belongs to another run is refused."""
    path = folder / ARCHIVED
    if not is_archived(folder):
        return 0
    if not path.exists():
        raise ValueError(f"{path} is missing, but files of the record are packed.")
    owner = str(read_json(folder / INFO).get("key"))
    rounds = unsealed(path.read_bytes(), path, pretty=True, owner=owner).get("rounds")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 0:
        raise damaged(path, "it does not say how many rounds were archived")
    return rounds


def refuse_archived(folder: Path) -> None:
    """Refuse to write into the archived record of a run."""
    if is_archived(folder):
        without = "" if (folder / SERVER).exists() else " without its networks"
        raise ValueError(
            f"{folder} was archived{without}, and nothing more is written there: the run cannot go on in it. Give "
            "another folder of runs by --out, or by PROTONORM_RUNS; the archived record is left as it is."
        )


def refuse_without_networks(folder: Path) -> None:
    """Refuse the archived record of a run whose networks were left out."""
    if is_archived(folder) and not (folder / SERVER).exists():
        raise ValueError(
            f"{folder} was archived without its networks: there are no trained clients in it. They are in the folder "
            "in which the run was done, which --out gives; `protonorm archive --with-clients` takes them along."
        )


def refuse_rounds_without(folder: Path, name: str) -> None:
    """Refuse a folder that lacks a file although rounds are on record, which would be lost if the run began anew."""
    rounds = len(read_either_lines(folder / METRICS))
    if rounds > 1:  # one may stand there of a round that was not committed
        raise ValueError(
            f"{folder / name} is missing, but {METRICS} has {rounds} rounds on record. Restore the file, or move the "
            "folder away to run the experiment again."
        )


def runs_root(out: Path | None = None) -> Path:
    """Find the folder of all runs: the one given, PROTONORM_RUNS, or ./runs."""
    return out or Path(os.environ.get("PROTONORM_RUNS") or "runs")


def find_runs(root: Path) -> list[Path]:
    """List the run folders under a root, also damaged ones that have rounds but do not say of what."""
    known_by = (INFO, METRICS, packed_path(Path(METRICS)).name)
    return sorted({path.parent for name in known_by for path in root.glob(f"*/{name}")})


def find_run(root: Path, name: str) -> Path:
    """Find a run by its folder, its name, or the beginning of its name."""
    if not name.strip():
        raise ValueError(f"{name!r} is no run: expected a run's folder, its name, or the beginning of its name.")
    for folder in (Path(name), root / name):
        if (folder / INFO).exists():
            return folder
    matches = [folder for folder in find_runs(root) if folder.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    known = [folder.name for folder in matches or find_runs(root)]
    what = "Several runs begin with" if matches else "There is no run"
    raise ValueError(f"{what} {name!r} in {root}; there are: {', '.join(known) or 'none'}.")
