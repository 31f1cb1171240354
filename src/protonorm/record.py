"""A run's folder: its experiment, a line of metrics a round, and the states to go on from.

experiment.json         settings, versions, class counts, the majority line
metrics.jsonl           one line a round; no time, no host: equal for equal experiments
timings.jsonl           seconds a round
server.safetensors      what the server remembers and last said; its rename commits a round
clients/<id>.<round>.safetensors    what a client remembers after the last round it trained in
prototypes/<round>.safetensors      the global prototypes, at up to 50 evenly spaced rounds
figures.safetensors     arrays for the figures, such as the first alignment's distances
failure.json            why and where a run stopped, if it did
"""

from __future__ import annotations

import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from filelock import FileLock, Timeout

from protonorm import tensors
from protonorm.files import append_line, pretty, read_json, read_lines, replace
from protonorm.history import committed, stamp
from protonorm.tensors import Tensors, prefixed, under

SNAPSHOTS = 50
VERSIONS = ("protonorm", "torch", "torchvision", "numpy")


class States:
    """The clients' files of a run; workers write them side by side, each client its own."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder / "clients"
        self.key = key

    def save(self, id: int, round: int, state: Tensors) -> None:
        """Keep a client's state after a round, beside the one before."""
        tensors.save(self._path(id, round), state, stamp(self.key, f"client-{id}", round))

    def load(self, id: int, round: int) -> Tensors:
        """Read a client's state after the last round it trained in."""
        return tensors.load(self._path(id, round), stamp(self.key, f"client-{id}", round))

    def tidy(self, done: int) -> None:
        """Remove what no resumed run can need: states after the committed round, and all but the last before."""
        found: dict[int, list[int]] = {}
        for path in self.folder.glob("*.safetensors"):
            if match := re.fullmatch(r"(\d+)\.(\d+)\.safetensors", path.name):
                found.setdefault(int(match[1]), []).append(int(match[2]))
        for id, rounds in found.items():
            keep = max((round for round in rounds if round <= done), default=None)
            for round in rounds:
                if round != keep:
                    self._path(id, round).unlink(missing_ok=True)

    def _path(self, id: int, round: int) -> Path:
        return self.folder / f"{id}.{round}.safetensors"


class Checkpoint(NamedTuple):
    """Where a run stands."""

    round: int  # the last committed one
    state: Tensors  # what the server remembers
    message: Tensors  # what it said last
    trained: list[int]  # the last round each client trained in; 0 for never


class Record:
    """One run's folder, held by one process at a time."""

    def __init__(self, folder: Path, key: str, rounds: int) -> None:
        self.folder = folder
        self.key = key
        self.states = States(folder, key)
        self._snapshots = set(np.linspace(1, rounds, min(SNAPSHOTS, rounds)).round().astype(int).tolist())
        self._lock = FileLock(folder / "lock")

    def __enter__(self) -> Self:
        for part in ("clients", "prototypes"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BlockingIOError(f"Another process is at work on {self.folder}; wait for it, or stop it.") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def describe(self, about: dict[str, Any]) -> None:
        """Write what the run is, once; refuse a folder that holds another experiment."""
        path = self.folder / "experiment.json"
        if not path.exists():
            replace(path, pretty(about | {"versions": versions()}))
        elif read_json(path).get("experiment") != about["experiment"]:
            raise ValueError(f"{path} holds another experiment than the one asked for; it is left as it is.")

    def resume(self) -> Checkpoint | None:
        """Bring the folder back to its last committed round; None if there is none."""
        done = committed(self.folder)
        held = self._load_server(done) if done else {}
        for name in ("metrics.jsonl", "timings.jsonl"):
            lines = read_lines(self.folder / name)
            if len(lines) < done:
                raise ValueError(f"{self.folder / name} is damaged: {len(lines)} lines for {done} committed rounds.")
            replace(self.folder / name, b"".join(lines[:done]))
        for leftover in self.folder.rglob(".*.*"):  # of a write that was killed
            leftover.unlink(missing_ok=True)
        (self.folder / "failure.json").unlink(missing_ok=True)
        self.states.tidy(done)
        if not done:
            return None
        return Checkpoint(done, under(held, "state"), under(held, "message"), held["trained"].tolist())

    def commit(self, point: Checkpoint, metrics: dict[str, Any], seconds: dict[str, float], figures: Tensors) -> None:
        """Make a round final. Clients have written their states; the server's rename is the commit."""
        round = point.round
        if round in self._snapshots and "prototypes" in point.message:
            path = self.folder / "prototypes" / f"{round}.safetensors"
            shown = {name: point.message[name] for name in ("classes", "prototypes")}
            tensors.save(path, shown, stamp(self.key, "server", round))
        if figures:
            tensors.save(self.folder / "figures.safetensors", figures, stamp(self.key, "figures", round))
        append_line(self.folder / "metrics.jsonl", metrics)
        append_line(self.folder / "timings.jsonl", {name: float(f"{value:.4g}") for name, value in seconds.items()})
        held = prefixed("state", point.state) | prefixed("message", point.message)
        held["trained"] = torch.tensor(point.trained)
        tensors.save(self.folder / "server.safetensors", held, stamp(self.key, "server", round))
        self.states.tidy(round)

    def fail(self, round: int, reason: str) -> None:
        """Note why a run stopped."""
        replace(self.folder / "failure.json", pretty({"round": round, "reason": reason}))

    def _load_server(self, done: int) -> Tensors:
        return tensors.load(self.folder / "server.safetensors", stamp(self.key, "server", done))


def versions() -> dict[str, str]:
    """Name what results may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}
