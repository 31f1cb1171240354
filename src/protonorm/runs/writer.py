"""Writing of run records, and recovery of the last committed round (see `layout` for the files)."""

import json
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from numpy.typing import NDArray

from protonorm import tensors
from protonorm.config.experiment import UNDECISIVE
from protonorm.core.task import ByClient
from protonorm.files import append, cut, damaged, make_folder, replace, sealed, unsealed
from protonorm.runs import layout, schema
from protonorm.runs.arrays import encode_arrays
from protonorm.runs.choice import Standing
from protonorm.runs.layout import committed, read_lines, refuse_archived, refuse_rounds_without, snapshot_rounds, stamp
from protonorm.runs.run import Population, read_block, read_run
from protonorm.runs.schema import ArrayRef, PendingRound, Provenance, RoundRecord, RunInfo, read_info, typed
from protonorm.runs.states import CACHE, Checkpoint, FolderStore, pack, trained_rounds, unpack
from protonorm.tensors import Tensors


class RoundOutcome(NamedTuple):
    """Results of a round, to be recorded."""

    record: Mapping[str, Any]  # fields of a RoundRecord except `arrays`, or before its evaluation of a PendingRound
    arrays: Mapping[str, NDArray[Any]]  # counts by client and by class, margins; none before the evaluation
    seconds: Mapping[str, float]
    figures: Tensors  # arrays for the figures


class RunWriter:
    """Writer of a run's folder, locked by one process at a time."""

    pending: PendingRound | None = None  # round that is committed and not evaluated yet

    def __init__(self, folder: Path, key: str, cache: int = CACHE) -> None:
        self.folder, self.key = folder, key
        self.store = FolderStore(folder / layout.CLIENTS, key, cache)
        self._lock = ExitStack()
        self._info: RunInfo | None = None
        self._standing: Standing | None = None
        self._done = 0  # committed rounds
        self._trained: list[int] | None = None  # as of the last commit
        self._chosen_trained: list[int] | None = None  # as of the best round so far, if it is not the last one

    def __enter__(self) -> Self:
        refuse_archived(self.folder)
        for part in (layout.CLIENTS, layout.PROTOTYPES):
            make_folder(self.folder / part)
        self._lock.enter_context(layout.locked(self.folder, layout.BUSY))
        return self

    def __exit__(self, *_: object) -> None:
        self._clean_up()  # a killed worker may have left files
        self._lock.close()

    def describe(self, info: RunInfo, population: Population) -> None:
        """Write the run's description once; raise a ValueError if the folder holds another experiment."""
        path, self._info, self._standing = self.folder / layout.INFO, info, Standing(info)
        if path.exists():
            recorded = read_info(path)
            rounds = max(info.experiment.rounds, recorded.experiment.rounds)  # a run may be extended later
            if _decisive(recorded, rounds) != _decisive(info, rounds):
                raise ValueError(f"{path} holds another experiment than the one asked for; it is left as it is.")
            schema.refuse_other_names(self.folder, recorded, info.classes, info.client_names)
            _warn_of_versions(recorded.versions, info.versions)
            if rounds == recorded.experiment.rounds:
                return
            info = info.model_copy(update={"versions": recorded.versions})
        else:
            refuse_rounds_without(self.folder, layout.INFO)
            counts = encode_arrays(population._asdict(), self._stamp("population", 0))
            replace(self.folder / layout.POPULATION, counts)
        replace(path, sealed(info.model_dump(mode="json"), pretty=True))

    def resume(self) -> Checkpoint | None:
        """Restore the folder to its last committed round and check its files; return None if there is no round."""
        done = self._done = committed(self.folder)
        if not done:
            refuse_rounds_without(self.folder, layout.SERVER)
        packed, trained = self._load(layout.SERVER, done) if done else ({}, None)
        chosen = self._cut_rounds()
        (self.folder / layout.FAILURE).unlink(missing_ok=True)
        self._trained, self._chosen_trained = trained, chosen
        self._clean_up()
        return None if trained is None else unpack(packed, done, trained)

    def start(self, provenance: Provenance) -> None:
        """Record the provenance of the following rounds."""
        path = self.folder / layout.PROVENANCE
        cut(path, sum(map(len, read_lines(path))))  # remove a line that a kill left incomplete
        append(path, sealed(provenance.model_dump(mode="json"), owner=self.key))

    def tidy(self) -> None:
        """Remove client states that a finished run does not need, which a kill may have left."""
        run = read_run(self.folder)
        self._done, self._standing, self._info = len(run.rounds), Standing.after(run.info, run.rounds), run.info
        (_, trained), chosen = self._load(layout.SERVER, self._done), self._load_chosen()
        self._trained, self._chosen_trained = trained, chosen

    def commit(self, point: Checkpoint, outcome: RoundOutcome) -> RoundRecord:
        """Commit a round by renaming the server's file, after the clients have written their states."""
        self._prepare(point, outcome.figures)
        record = self._append(outcome)
        self._finish(point)
        if self._standing:
            self._standing.add(record)
        return record

    def _prepare(self, point: Checkpoint, figures: Tensors) -> None:
        """Write the best checkpoint, prototypes and figures of a round, before its commit."""
        round = point.round
        if self.chosen and self.chosen == round - 1:  # the best round will no longer be the last one
            replace(self.folder / layout.CHOSEN, (self.folder / layout.SERVER).read_bytes())
            self._chosen_trained = self._trained
        message: Tensors = {} if isinstance(point.message, ByClient) else point.message
        if {"classes", "prototypes"} <= message.keys():
            path = self.folder / layout.PROTOTYPES / f"{round}.safetensors"
            prototypes = {name: message[name] for name in ("classes", "prototypes")}
            tensors.save(path, prototypes, self._stamp("prototypes", round))
        every = layout.interval(self._info.keeps("keep_client_prototypes", "none")) if self._info else 0
        if every and round % every == 0:
            self._keep_client_prototypes(point)
        if figures:
            tensors.save(self.folder / layout.FIGURES, figures, self._stamp("figures", 1))  # 1 for figures of any round

    def _keep_client_prototypes(self, point: Checkpoint) -> None:
        """Write the own prototypes of the clients that trained in a round, from their states; no file without any."""
        parts: list[tuple[torch.Tensor, ...]] = []
        for id in (id for id, last in enumerate(point.trained) if last == point.round):
            state = self.store.peek(id, point.round)
            if {"classes", "prototypes"} <= state.keys():
                classes = state["classes"]
                parts.append((torch.full_like(classes, id), classes, state["prototypes"]))
        if parts:
            named = zip(("clients", "classes", "prototypes"), map(torch.cat, zip(*parts, strict=True)), strict=True)
            path = self.folder / layout.PROTOTYPES / f"{point.round}.clients.safetensors"
            tensors.save(path, dict(named), self._stamp("client-prototypes", point.round))

    def _snapshots(self, done: int) -> set[int]:
        return snapshot_rounds(done, keep=self._info.keeps("keep_prototypes", "some") if self._info else "some")

    def _finish(self, point: Checkpoint) -> None:
        """Write the server's file, which commits the round."""
        self._trained = None  # unknown if Ctrl-C interrupts the save: all states are kept
        tensors.save(self.folder / layout.SERVER, pack(point), self._stamp("server", point.round))
        self._trained, self._done = list(point.trained), point.round
        for removed in self._snapshots(point.round - 1) - self._snapshots(point.round):
            (self.folder / layout.PROTOTYPES / f"{removed}.safetensors").unlink(missing_ok=True)

    @property
    def chosen(self) -> int:
        """Best round so far by validation accuracy; 0 if there is none."""
        return self._standing.chosen if self._standing else 0

    @property
    def stopped(self) -> bool:
        """Whether the run has ended early: its method is finished, or validation accuracy improves no more."""
        return self._standing is not None and (self._standing.stopped or self._standing.finished(self.pending))

    def fail(self, round: int, reason: str) -> None:
        """Record why a run stopped."""
        content = sealed({"round": round, "reason": reason}, pretty=True, owner=self.key)
        replace(self.folder / layout.FAILURE, content)

    def _clean_up(self) -> None:
        """Remove temporary files, and states and prototypes that a resumed run does not need."""
        for leftover in layout.leftovers(self.folder):
            leftover.unlink(missing_ok=True)
        if self._trained is None:
            return
        best_is_last = self.chosen in (0, self._done)  # then the state of an earlier best is not needed
        best = self._trained if best_is_last else self._chosen_trained or self._trained
        self.store.tidy([set(pair) for pair in zip(self._trained, best, strict=False)])
        kept = self._snapshots(self._done)
        for path in (self.folder / layout.PROTOTYPES).glob("*.safetensors"):
            if path.stem.isdigit() and int(path.stem) not in kept:
                path.unlink(missing_ok=True)

    def _append(self, outcome: RoundOutcome) -> RoundRecord:
        """Append a round to metrics, evaluations and timings."""
        round = outcome.record["round"]
        evaluations = self.folder / layout.EVALUATIONS
        block = encode_arrays(outcome.arrays, self._stamp("evaluation", round))
        start = evaluations.stat().st_size if evaluations.exists() else 0
        record = RoundRecord(**outcome.record, arrays=ArrayRef(start=start, size=len(block)))
        line = sealed(record.model_dump(mode="json"), owner=self.key)
        metrics = self.folder / layout.METRICS
        try:  # nothing is written that could not be read again
            typed(RoundRecord, unsealed(line, metrics, owner=self.key), metrics)
            if self._info:
                read_block(block, evaluations, self._info, round)
        except ValueError as error:
            raise ValueError(f"Round {round} is not written, for it could not be read again: {error}") from error
        append(evaluations, block)
        append(metrics, line)
        seconds = {name: float(f"{value:.4g}") for name, value in outcome.seconds.items()}
        append(self.folder / layout.TIMINGS, sealed({"of": round, **seconds}, owner=self.key))
        return record

    def _cut_rounds(self) -> list[int] | None:
        """Truncate uncommitted rounds; return the last trained rounds (M,) as of the best round."""
        metrics, timings = self.folder / layout.METRICS, self.folder / layout.TIMINGS
        size, chosen, kept = 0, None, 0
        if self._done:
            run = read_run(self.folder)
            _ = run.population, [run.arrays(record) for record in run.rounds]  # detect damage before hours of training
            kept = len(run.rounds)
            self._standing = Standing.after(run.info, run.rounds)
            chosen = self._load_chosen()
            size = sum(record.arrays.start + record.arrays.size for record in run.rounds[-1:])
        cut(metrics, sum(map(len, read_lines(metrics)[:kept])))
        cut(self.folder / layout.EVALUATIONS, size)
        times = read_lines(timings)
        last = max((number for number, line in enumerate(times, 1) if 1 <= _round_of(line) <= kept), default=0)
        cut(timings, sum(map(len, times[:last])))
        return chosen

    def _load_chosen(self) -> list[int] | None:
        """Return the last trained rounds (M,) as of the best round; None if it is the last round."""
        return None if self.chosen in (0, self._done) else self._load(layout.CHOSEN, self.chosen)[1]

    def _load(self, name: str, round: int) -> tuple[Tensors, list[int]]:
        """Read the server's file of a round, and the last trained rounds (M,) in it."""
        packed = tensors.load(self.folder / name, self._stamp("server", round))
        clients = read_info(self.folder / layout.INFO).experiment.clients
        return packed, trained_rounds(packed, clients, round, self.folder / name)

    def _stamp(self, owner: str, round: int) -> str:
        return stamp(self.key, owner, round)


def _decisive(info: RunInfo, rounds: int) -> dict[str, Any]:
    """Return the settings that determine the results of `rounds` rounds."""
    settings = info.experiment.plain() | {"rounds": rounds}
    return {name: value for name, value in settings.items() if name not in UNDECISIVE}


def _round_of(line: bytes) -> int:
    """Return the round of a line of timings; 0 if it is damaged, because timings are optional."""
    try:
        return int(json.loads(line)["of"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def _warn_of_versions(recorded: dict[str, str], current: dict[str, str]) -> None:
    """Warn if a run is resumed with other versions than it was started with."""
    changed = {name: version for name, version in current.items() if version != recorded.get(name)}
    if other := ", ".join(f"{name} {version} (was {recorded.get(name)})" for name, version in changed.items()):
        warning = f"The run goes on with other versions than it began with: {other}. Its last bits may differ."
        warnings.warn(warning, stacklevel=4)


class DeferredWriter(RunWriter):
    """Run writer that commits a round before its evaluation; at most the last round is pending."""

    def redescribe(self, info: RunInfo, population: Population) -> None:
        """Write a run's description anew: clients have joined, or settings were amended."""
        path = self.folder / layout.INFO
        recorded = read_info(path)
        before, now = recorded.client_names or [], info.client_names or []
        if (recorded.key, recorded.classes, before) != (info.key, info.classes, now[: len(before)]):
            raise ValueError(f"{path} holds another experiment than the one asked for; it is left as it is.")
        _warn_of_versions(recorded.versions, info.versions)
        self._info, self._standing = info, self._standing or Standing(info)
        if len(now) > len(before):
            replace(self.folder / layout.POPULATION, encode_arrays(population._asdict(), self._stamp("population", 0)))
        if recorded != info:
            replace(path, sealed(info.model_dump(mode="json"), pretty=True))

    def resume(self) -> Checkpoint | None:
        """Restore the folder to its last committed round, and set `pending` if it is not evaluated yet."""
        point, path = super().resume(), self.folder / layout.PENDING
        if len(read_lines(self.folder / layout.METRICS)) == self._done:
            self.end()  # of a recorded or an uncommitted round
            return point
        self.pending = typed(PendingRound, unsealed(path.read_bytes(), path, pretty=True, owner=self.key), path)
        if self.pending.round != self._done:
            raise damaged(path, f"it is of round {self.pending.round}, and round {self._done} waits for its evaluation")
        return point

    def commit_trained(self, point: Checkpoint, trained: RoundOutcome) -> None:
        """Commit a round that is not evaluated yet; the previous round must be recorded."""
        if self.pending is not None:
            raise AssertionError(f"round {self.pending.round} has no line in the record yet")
        self._prepare(point, trained.figures)
        pending = PendingRound.model_validate({**trained.record, "seconds": dict(trained.seconds)})
        replace(self.folder / layout.PENDING, sealed(pending.model_dump(mode="json"), pretty=True, owner=self.key))
        self._finish(point)
        self.pending = pending

    def add_evaluation(self, evaluated: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RoundRecord:
        """Record the evaluation of the pending round."""
        assert self.pending is not None
        fields = {name: getattr(self.pending, name) for name in PendingRound.model_fields if name != "seconds"}
        record = self._append(RoundOutcome(fields | dict(evaluated), arrays, self.pending.seconds, {}))
        if self._standing:
            self._standing.add(record)
        self.pending = None
        return record

    def reported(self) -> list[Checkpoint]:
        """Return the checkpoints after the best round by validation, if there is one, and after the last round."""
        best = [] if self.chosen in (0, self._done) else [(layout.CHOSEN, self.chosen)]
        loaded = [(round, *self._load(name, round)) for name, round in [*best, (layout.SERVER, self._done)]]
        return [unpack(packed, round, trained) for round, packed, trained in loaded]

    def end(self) -> None:
        """Remove the file that only an unfinished run has."""
        self.pending = None
        (self.folder / layout.PENDING).unlink(missing_ok=True)
