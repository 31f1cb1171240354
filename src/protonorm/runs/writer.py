"""Write the record of a run, and bring it back to its last committed round (see `layout` for what is in a folder)."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from protonorm import tensors
from protonorm.config.keys import UNDECISIVE
from protonorm.core.task import ByClient
from protonorm.files import PRIVATE_FILE, append, cut, make_folder, read_lines, replace, sealed
from protonorm.runs import layout
from protonorm.runs.arrays import encode_arrays, write_arrays
from protonorm.runs.checkpoint import Checkpoint, pack, trained_rounds, unpack
from protonorm.runs.info import read_info, refuse_other_names
from protonorm.runs.layout import committed, refuse_archived, refuse_rounds_without, snapshot_rounds, stamp
from protonorm.runs.reader import read_run
from protonorm.runs.run import Population
from protonorm.runs.schema import ArrayRef, Provenance, RoundRecord, RunInfo
from protonorm.runs.standing import Standing
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors


class RoundOutcome(NamedTuple):
    """What a round leaves behind for the record."""

    record: dict[str, Any]  # a RoundRecord but for its place of arrays
    arrays: Mapping[str, NDArray[Any]]  # counts by client and by class, margins
    seconds: Mapping[str, float]
    figures: Tensors  # arrays for the figures


class RunWriter:
    """One run's folder, held by one process at a time."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self.store = FolderStore(folder / layout.CLIENTS, key)
        self._standing: Standing | None = None
        self._chosen_trained: list[int] | None = None  # as of the best round so far, if that is not the last one
        self._lock = FileLock(folder / layout.LOCK, mode=PRIVATE_FILE)
        self._trained: list[int] | None = None  # as of the last commit
        self._done = 0  # committed rounds

    def __enter__(self) -> Self:
        refuse_archived(self.folder)
        for part in (layout.CLIENTS, layout.PROTOTYPES):
            make_folder(self.folder / part)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BlockingIOError(f"Another process is at work on {self.folder}; wait for it, or stop it.") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._clean_up()  # a worker that was killed may have left something behind
        self._lock.release()

    def describe(self, info: RunInfo, population: Population) -> None:
        """Write what the run is, once; refuse a folder that holds another experiment."""
        path, self._standing = self.folder / layout.INFO, Standing(info)
        if not path.exists():
            refuse_rounds_without(self.folder, layout.INFO)
            write_arrays(self.folder / layout.POPULATION, population._asdict(), self._stamp("population", 0))
            replace(path, sealed(info.model_dump(mode="json"), pretty=True))
            return
        found = read_info(path)
        rounds = max(info.experiment.rounds, found.experiment.rounds)  # more may be asked for later
        if _decisive(found, rounds) != _decisive(info, rounds):
            raise ValueError(f"{path} holds another experiment than the one asked for; it is left as it is.")
        refuse_other_names(self.folder, found, info.classes, info.client_names)
        _tell_of_versions(found.versions, info.versions)
        if rounds > found.experiment.rounds:
            replace(
                path, sealed(info.model_copy(update={"versions": found.versions}).model_dump(mode="json"), pretty=True)
            )

    def resume(self) -> Checkpoint | None:
        """Bring the folder back to its last committed round; None if there is none. All that is read is checked."""
        done = committed(self.folder)
        if not done:
            refuse_rounds_without(self.folder, layout.SERVER)
        self._done, held = done, self._load_server(done) if done else {}
        trained = self._read_trained(held, done) if done else None
        chosen = self._cut_rounds(done)
        (self.folder / layout.FAILURE).unlink(missing_ok=True)
        self._trained, self._chosen_trained = trained, chosen
        self._clean_up()
        if self._trained is None:
            return None
        return unpack(held, done, self._trained)

    def start(self, provenance: Provenance) -> None:
        """Note where the rounds that come now come from."""
        path = self.folder / layout.PROVENANCE
        cut(path, sum(map(len, read_lines(path))))  # a line that a kill has cut short
        append(path, sealed(provenance.model_dump(mode="json"), owner=self.key))

    def tidy(self) -> None:
        """Remove the states of clients that a finished run no longer needs, if a kill has left some."""
        run = read_run(self.folder)
        self._done, self._standing = len(run.rounds), Standing.after(run.info, run.rounds)
        trained, chosen = self._read_trained(self._load_server(len(run.rounds)), len(run.rounds)), self._load_chosen()
        self._trained, self._chosen_trained = trained, chosen

    def commit(self, point: Checkpoint, outcome: RoundOutcome) -> RoundRecord:
        """Make a round final. Clients have written their states; the rename of the server's file is the commit."""
        self._prepare(point, outcome.figures)
        record = self._append(outcome)
        self._finish(point)
        if self._standing:
            self._standing.add(record)
        return record

    def _prepare(self, point: Checkpoint, figures: Tensors) -> None:
        """Write what stands beside a round, as long as it can still be taken back."""
        round = point.round
        if self.chosen and self.chosen == round - 1:  # the best round is about to be no longer the last
            replace(self.folder / layout.CHOSEN, (self.folder / layout.SERVER).read_bytes())
            self._chosen_trained = self._trained
        common: Tensors = {} if isinstance(point.message, ByClient) else point.message
        if round in snapshot_rounds(round) and {"classes", "prototypes"} <= common.keys():
            shown = {name: common[name] for name in ("classes", "prototypes")}
            path = self.folder / layout.PROTOTYPES / f"{round}.safetensors"
            tensors.save(path, shown, self._stamp("prototypes", round))
        if figures:
            tensors.save(self.folder / layout.FIGURES, figures, self._stamp("figures", 1))  # whatever round they are of

    def _finish(self, point: Checkpoint) -> None:
        """Move the server's file to its place: now the round is final."""
        self._trained = None  # if Ctrl-C comes now, nobody here knows which states count: all stay
        tensors.save(self.folder / layout.SERVER, pack(point), self._stamp("server", point.round))
        self._trained, self._done = list(point.trained), point.round
        for gone in snapshot_rounds(point.round - 1) - snapshot_rounds(point.round):
            (self.folder / layout.PROTOTYPES / f"{gone}.safetensors").unlink(missing_ok=True)

    @property
    def chosen(self) -> int:
        """Give the best round so far by validation; 0 if there is none."""
        return self._standing.chosen if self._standing else 0

    @property
    def stopped(self) -> bool:
        """Tell whether the run has lost its patience."""
        return self._standing is not None and self._standing.stopped

    def fail(self, round: int, reason: str) -> None:
        """Note why a run stopped."""
        replace(self.folder / layout.FAILURE, sealed({"round": round, "reason": reason}, pretty=True))

    def _clean_up(self) -> None:
        """Remove half-written files of ours, and states that no resumed run can need."""
        for leftover in layout.leftovers(self.folder):
            leftover.unlink(missing_ok=True)
        if self._trained is None:
            return
        best_is_last = self.chosen in (0, self._done)  # then what was the best before is no longer needed
        best = self._trained if best_is_last else self._chosen_trained or self._trained
        self.store.tidy([set(pair) for pair in zip(self._trained, best, strict=True)])
        kept = snapshot_rounds(self._done)
        for path in (self.folder / layout.PROTOTYPES).glob("*.safetensors"):
            if path.stem.isdigit() and int(path.stem) not in kept:
                path.unlink(missing_ok=True)

    def _append(self, outcome: RoundOutcome) -> RoundRecord:
        """Add a round to the files that grow."""
        round = outcome.record["round"]
        place = self.folder / layout.EVALUATIONS
        block = encode_arrays(outcome.arrays, self._stamp("evaluation", round))
        start = place.stat().st_size if place.exists() else 0
        record = RoundRecord(**outcome.record, arrays=ArrayRef(start=start, size=len(block)))
        append(place, block)
        append(self.folder / layout.METRICS, sealed(record.model_dump(mode="json"), owner=self.key))
        seconds = {name: float(f"{value:.4g}") for name, value in outcome.seconds.items()}
        append(self.folder / layout.TIMINGS, sealed({"of": round, **seconds}, owner=self.key))
        return record

    def _cut_rounds(self, done: int) -> list[int] | None:
        """Take from the files that grow what was not committed; say who had trained when as of the best round."""
        metrics, timings = self.folder / layout.METRICS, self.folder / layout.TIMINGS
        lines = read_lines(metrics)
        size, chosen, kept = 0, None, 0
        if done:
            run = read_run(self.folder)
            # Damage shows now, not after hours of training.
            checked = [len(run.population), *(len(run.arrays(record)) for record in run.rounds)]
            kept = len(run.rounds)
            assert len(checked) == kept + 1
            self._standing = Standing.after(run.info, run.rounds)
            chosen = self._load_chosen()
            size = max((record.arrays.start + record.arrays.size for record in run.rounds[-1:]), default=0)
        cut(metrics, sum(map(len, lines[:kept])))
        cut(self.folder / layout.EVALUATIONS, size)
        times = read_lines(timings)
        last = max((place for place, line in enumerate(times, 1) if 1 <= _round_of(line) <= kept), default=0)
        cut(timings, sum(map(len, times[:last])))
        return chosen

    def _load_chosen(self) -> list[int] | None:
        """Find in which round each client had trained as of the best round; None if that is the last one."""
        if self.chosen in (0, self._done):
            return None
        held = tensors.load(self.folder / layout.CHOSEN, self._stamp("server", self.chosen))
        return self._read_trained(held, self.chosen, layout.CHOSEN)

    def _load_server(self, done: int) -> Tensors:
        return tensors.load(self.folder / layout.SERVER, self._stamp("server", done))

    def _read_trained(self, held: Tensors, done: int, name: str = layout.SERVER) -> list[int]:
        clients = read_info(self.folder / layout.INFO).experiment.clients
        return trained_rounds(held, clients, done, self.folder / name)

    def _stamp(self, what: str, round: int) -> str:
        return stamp(self.key, what, round)


def _tell_of_versions(before: dict[str, str], now: dict[str, str]) -> None:
    """Say that a run goes on with other versions than those it began with."""
    other = [f"{name} {now.get(name)} (was {before.get(name)})" for name in now if now.get(name) != before.get(name)]
    if other:
        warnings.warn(
            f"The run goes on with other versions than it began with: {', '.join(other)}. Its last bits may differ.",
            stacklevel=4,
        )


def _decisive(info: RunInfo, rounds: int) -> dict[str, Any]:
    """List the settings that decide the numbers of so many rounds."""
    plain = info.experiment.plain() | {"rounds": rounds}
    return {name: value for name, value in plain.items() if name not in UNDECISIVE}


def _round_of(line: bytes) -> int:
    """Read of which round a line of times is; 0 if nobody can tell: a lost time stops nobody."""
    try:
        return int(json.loads(line)["of"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
