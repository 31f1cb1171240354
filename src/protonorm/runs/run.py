"""Reading of runs: rounds, accuracies by client and class, prototypes. Does not import torch."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.text import shortened
from protonorm.core.types import rule_name, shown, truncate_start
from protonorm.files import damaged, unsealed
from protonorm.metrics import METRICS, metrics
from protonorm.runs import layout
from protonorm.runs.arrays import ArrayCache, Arrays, accuracy_of, majority_correct, ratio, read_arrays, unfit
from protonorm.runs.choice import Choice, Standing, choose_round
from protonorm.runs.layout import committed, exists, is_archived, read_file, read_lines, snapshot_rounds, stamp
from protonorm.runs.schema import Accuracy, Failure, Model, Provenance, RoundRecord, RunInfo, Seconds, read_info, typed

Shares = NDArray[np.float64]


class RoundSummary(NamedTuple):
    """Accuracies of a round under one rule."""

    round: int
    pooled: float
    mean: float
    worst: float


class Summary(NamedTuple):
    """Accuracies of a run under one rule: best round, last round, and mean of each client's own best."""

    best: RoundSummary
    last: RoundSummary
    own_best: float


class Population(NamedTuple):
    """Numbers of samples by client and class."""

    train: NDArray[np.int64]  # (M, K)
    validation: NDArray[np.int64]  # (M, K), disjoint from the training samples
    test: NDArray[np.int64]  # (M, K)


class Prototypes(NamedTuple):
    """Global prototypes after a round."""

    classes: NDArray[np.int64]  # (K',)
    vectors: Shares  # (K', d)


class ClientPrototypes(NamedTuple):
    """Own prototypes of the clients that trained in a round."""

    clients: NDArray[np.int64]  # (n,) numbers of clients
    classes: NDArray[np.int64]  # (n,)
    vectors: Shares  # (n, d)


@dataclass(frozen=True, repr=False)
class Run:
    """Recorded run, read from its folder without torch; a damaged file raises a ValueError that names it."""

    folder: Path  # folder of the run
    info: RunInfo  # settings, rules, classes, networks and versions (experiment.json)
    rounds: list[RoundRecord]  # committed rounds, in order
    failure: Failure | None  # reason and round of a failure; None if the run did not fail
    _arrays: ArrayCache = field(default_factory=ArrayCache, init=False, compare=False)

    def __repr__(self) -> str:
        """Return a one-line description: method, dataset, seed, rounds and folder."""
        settings = self.info.experiment
        method, data = shortened(settings.algorithm.name, 40), shortened(settings.dataset.name, 40)
        done = f"{len(self.rounds)} of {settings.rounds} rounds"
        return f"Run({method} on {data}, seed {settings.seed}: {done}; {truncate_start(str(self.folder))})"

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or the run ended before."""
        return len(self.rounds) >= self.info.experiment.rounds or self.stopped_early

    @property
    def stopped_early(self) -> bool:
        """Whether the method is finished, or validation accuracy has not improved for `early_stopping` evaluations."""
        return (standing := Standing.after(self.info, self.rounds)).stopped or standing.finished()

    @cached_property
    def chosen(self) -> Choice | None:
        """Reported round under the method's headline rule; None if no round was evaluated.

        It is the first round with the best mean validation accuracy, among the rounds that evaluate all clients.
        Without a validation part, it is the round with the best test accuracy, which is optimistic.
        """
        return choose_round(self.rounds, self.info.headline)

    @cached_property
    def population(self) -> Population:
        """Numbers of samples by client and class: `train`, `validation` and `test`, each (M, K)."""
        path = self.folder / layout.POPULATION
        counts = read_arrays(path, stamp(self.info.key, "population", 0))
        shape = (self.info.experiment.clients, len(self.info.classes))
        if counts.keys() != set(Population._fields) or any(count.shape != shape for count in counts.values()):
            raise damaged(path, f"it does not hold the samples of {shape[0]} clients and {shape[1]} classes")
        return Population(**counts)

    @property
    def knows_samples(self) -> bool:
        """Whether numbers of samples are recorded; in a deployed federation, only each client knows its own."""
        return any(part.any() for part in self.population)

    @property
    def of_owners(self) -> str:
        """Sentence on where the networks of a deployed federation are; empty for a simulation."""
        where = f"{self.folder} has no network of any client: each is on its owner's machine"
        return "" if self.info.input else f"{where}, where `protonorm deploy export` writes it."

    @cached_property
    def majority(self) -> Accuracy | None:
        """Accuracy of predicting each client's most frequent training class; None without test samples.

        Clients that never train are left out, as they are of every other accuracy.
        """
        train, _, test = self.population
        if (self.info.experiment.model_extra or {}).get("held_out") and self.chosen:
            test = test * (self.support(self.chosen.record) > 0)[:, None]
        return accuracy_of(majority_correct(train, test).sum(1), test.sum(1))

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """Names of the metrics other than accuracy: the usual ones, and optional ones that are recorded."""
        parts = (part for record in self.rounds for part in (record.rules, record.validation))
        recorded = {name for part in parts for accuracy in part.values() if accuracy for name in accuracy.metrics}
        return tuple(name for name, metric in metrics().items() if not metric.optional or name in recorded)

    def client_name(self, id: int) -> str:
        """Return a client's name, that of its folder or file, or else its number."""
        return self.info.client_name(id)

    def find_client(self, client: str | int) -> int:
        """Return the number of a client, given its name or number; a str is looked up as a name first.

        Raises:
            ValueError: There is no such client.
        """
        return self.info.find_client(client)

    def arrays(self, record: RoundRecord) -> Arrays:
        """Return the arrays of a round by name: evaluated clients, counts by client and class, margins."""
        arrays = self._arrays.get(record.round)
        if arrays is None:
            path = self.folder / layout.EVALUATIONS
            arrays = self._arrays[record.round] = read_block(self.block(record), path, self.info, record.round)
        return arrays

    def by_client(self, record: RoundRecord, rule: str, part: str = "test") -> Shares:
        """Compute each client's accuracy (M,) under a rule on its `test` or `validation` part; NaN if not evaluated."""
        correct = self._by_client(record, f"{part}.correct.clients.{rule_name(rule)}", np.nan)
        return ratio(correct, self.support(record, part))

    def support(self, record: RoundRecord, part: str = "test") -> NDArray[np.int64]:
        """Return the number of samples (M,) each client was evaluated on in a round; 0 if not evaluated."""
        return self._by_client(record, f"{part}.support.clients", 0)

    def measured(self, record: RoundRecord, rule: str, measure: str, part: str = "test") -> Shares:
        """Return each client's value (M,) of a metric other than accuracy in a round; NaN where there is none.

        Raises:
            ValueError: There is no such metric.
        """
        if measure not in METRICS:
            raise ValueError(f"There is no measure {measure!r} beside accuracy; known: {', '.join(METRICS)}.")
        return self._by_client(record, f"{part}.{measure}.clients.{rule_name(rule)}", np.nan)

    def _by_client(self, record: RoundRecord, name: str, default: float) -> NDArray[Any]:
        """Return an array of the evaluated clients as one of all clients (M,)."""
        arrays, values = self.arrays(record), np.full(self.info.experiment.clients, default)
        if name in arrays:
            values[arrays.get("ids", slice(self.info.clients_in(record.round)))] = arrays[name]
        return values

    def by_class(self, record: RoundRecord, rule: str, part: str = "test", measure: str = "accuracy") -> Shares:
        """Compute each class's accuracy (K,) in a round, over all evaluated clients; NaN without samples.

        Of another measure, such as `auroc`, it is the mean over clients; NaN if it has no values of classes.
        """
        arrays = self.arrays(record)
        if measure != "accuracy":
            values = arrays.get(f"{part}.{measure}.classes.{rule_name(rule)}", np.full(len(self.info.classes), np.nan))
            return values.astype(np.float64)
        correct = arrays.get(f"{part}.correct.classes.{rule_name(rule)}")
        unknown = np.full(len(self.info.classes), np.nan)
        return unknown if correct is None else ratio(correct, arrays[f"{part}.support.classes"])

    def by_cell(self, record: RoundRecord, rule: str, part: str = "test") -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return right answers and samples (M, K) by client and class in a round; None without `keep_classes`."""
        arrays = self.arrays(record)
        names = [f"{part}.correct.cells.{rule_name(rule)}", f"{part}.support.cells"]
        if any(name not in arrays for name in names):
            return None
        counts = np.zeros((2, self.info.experiment.clients, len(self.info.classes)), np.int64)
        counts[:, arrays.get("ids", slice(self.info.clients_in(record.round)))] = [arrays[name] for name in names]
        return counts[0], counts[1]

    def margins(self, record: RoundRecord) -> tuple[NDArray[np.int64], Shares] | None:
        """Return the classes (K',) with prototypes after a round and their margins (K',); None if there are none."""
        arrays = self.arrays(record)
        return (arrays["margins.classes"], arrays["margins"]) if "margins" in arrays else None

    def summary(self, rule: str | None = None) -> Summary | None:
        """Summarise the rounds under a rule, the method's headline rule by default; None if no round was tested.

        The best round is the one of the best pooled test accuracy, among those that test all clients if there are any.
        """
        rule = rule_name(rule or self.info.headline)
        tested = [(record, accuracy) for record in self.rounds if (accuracy := record.rules.get(rule))]
        if not tested:
            return None
        everybody = [pair for pair in tested if pair[0].evaluated == "all"]  # a cohort may be easier
        best = max(everybody or tested, key=lambda pair: pair[1].pooled)
        bests = np.full(self.info.experiment.clients, np.nan)  # (M,) best accuracy of each client
        for record, _ in tested:
            bests = np.fmax(bests, self.by_client(record, rule))  # NaN where a client was not evaluated
        ends = [
            RoundSummary(of.round, accuracy.pooled, accuracy.mean, accuracy.worst)
            for of, accuracy in (best, tested[-1])
        ]
        return Summary(ends[0], ends[1], float(f"{bests[~np.isnan(bests)].mean():.6g}"))

    @cached_property
    def seconds(self) -> dict[int, float]:
        """Seconds by committed round; missing or damaged timings are omitted."""
        times = {line.of: line.round for line in self._whole_lines(layout.TIMINGS, Seconds)}
        return {record.round: times[record.round] for record in self.rounds if record.round in times}

    @cached_property
    def starts(self) -> list[Provenance]:
        """Provenance of each start or resumption of the run; damaged entries are omitted."""
        return list(self._whole_lines(layout.PROVENANCE, Provenance))

    def _whole_lines(self, name: str, model: type[Model]) -> Iterator[Model]:
        path = self.folder / name
        for line in read_lines(path):
            with suppress(ValueError):
                yield typed(model, unsealed(line, path, owner=self.info.key), path)

    @property
    def provenance(self) -> Provenance | None:
        """Provenance of the first rounds; None if it is not recorded."""
        return self.starts[0] if self.starts and self.starts[0].done == 0 else None

    @property
    def lost_provenance(self) -> str:
        """Message that provenance is missing or damaged; empty if it is complete."""
        if self.provenance and len(self.starts) == len(read_lines(self.folder / layout.PROVENANCE)):
            return ""
        return f"{layout.PROVENANCE} is missing or damaged: it does not tell where all rounds come from."

    def snapshots(self) -> list[int]:
        """List the committed rounds whose prototypes are recorded; none if the run was archived without them."""
        if is_archived(self.folder) and not exists(self.folder / layout.SERVER):
            return []
        done = max(len(self.rounds), committed(self.folder))  # not all may be requested
        keep = self.info.keeps("keep_prototypes", "some")
        kept = snapshot_rounds(done, last=exists(self._prototypes_path(done)), keep=keep)
        return [record.round for record in self.rounds if record.round in kept and record.prototypes]

    def _prototypes_path(self, round: int) -> Path:
        return self.folder / layout.PROTOTYPES / f"{round}.safetensors"

    def prototypes(self, round: int) -> Prototypes:
        """Read the global prototypes after a round, one of `snapshots()`.

        Returns:
            `classes` (K',) and `vectors` (K', d).

        Raises:
            ValueError: No prototypes of this round are recorded, or their file is missing or damaged.
        """
        path, recorded = self._prototypes_path(round), self.snapshots()
        if round not in recorded:
            rounds = f"they are of rounds {', '.join(map(str, recorded))}" if recorded else "the record has none"
            raise ValueError(f"No prototypes of round {shown(round)} are recorded; {rounds}.")
        arrays = read_arrays(path, stamp(self.info.key, "prototypes", round))
        classes, vectors = (arrays.get(name, np.zeros(0)) for name in ("classes", "prototypes"))
        fits = vectors.ndim == 2 and len(vectors) and classes.shape == vectors.shape[:1]
        if not fits or classes.min() < 0 or classes.max() >= len(self.info.classes):
            raise damaged(path, "it does not hold prototypes and their classes")
        return Prototypes(classes.astype(np.int64), vectors.astype(np.float64))

    def client_prototypes(self, round: int) -> ClientPrototypes:
        """Read the own prototypes of the clients that trained in a round; needs `keep_client_prototypes`.

        Raises:
            ValueError: No prototypes of clients are kept of this round, or their file is damaged.
        """
        path = self.folder / layout.PROTOTYPES / f"{round}.clients.safetensors"
        if not exists(path):
            kept = [item.round for item in self.rounds if exists(path.with_name(f"{item.round}.clients.safetensors"))]
            names = list(map(str, kept))
            which = f"they are of rounds {', '.join(names)}" if names else "there are none"
            raise ValueError(
                f"No prototypes of clients are recorded in round {shown(round)}: {which}. keep_client_prototypes=all "
                "keeps those of every round, where a method's clients have some."
            )
        arrays = read_arrays(path, stamp(self.info.key, "client-prototypes", round))
        clients, classes, vectors = (arrays.get(name, np.zeros(0)) for name in ("clients", "classes", "prototypes"))
        if vectors.ndim != 2 or not clients.shape == classes.shape == vectors.shape[:1]:
            raise damaged(path, "it does not hold prototypes, their clients and classes")
        return ClientPrototypes(clients.astype(np.int64), classes.astype(np.int64), vectors.astype(np.float64))

    def figures(self) -> Arrays:
        """Read the arrays that the server recorded for figures; empty if there are none."""
        path = self.folder / layout.FIGURES
        return read_arrays(path, stamp(self.info.key, "figures", 1)) if exists(path) else {}

    @cached_property
    def _packed_evaluations(self) -> bytes | None:
        return read_file(self.folder / layout.EVALUATIONS) if layout.is_packed(self.folder) else None

    def block(self, record: RoundRecord) -> bytes:
        """Read the encoded arrays of a round; a packed record is unpacked once."""
        path, start, size = self.folder / layout.EVALUATIONS, record.arrays.start, record.arrays.size
        if self._packed_evaluations is not None:
            return self._packed_evaluations[start : start + size]
        if not path.exists():
            raise ValueError(f"{path} is missing.")
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)


def read_block(block: bytes, path: Path, info: RunInfo, round: int) -> Arrays:
    """Decode the arrays of a round; raise a ValueError if any is invalid."""
    arrays = read_arrays(path, stamp(info.key, "evaluation", round), block)
    if wrong := unfit(arrays, info.clients_in(round), len(info.classes)):
        raise damaged(path, f"{', '.join(wrong)} of round {round} cannot be")
    return {
        before + dot + rule_name(rule): array
        for name, array in arrays.items()
        for before, dot, rule in [name.rpartition(".")]
    }


UNREADABLE = (ValueError, OSError)  # raised when a damaged record is read
UNFIT = (KeyError, IndexError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError)


def read_run(folder: str | Path, rounds: int | None = None) -> Run:
    """Read a run from its folder, without torch.

    Args:
        folder: Folder of the run.
        rounds: Number of rounds to read, the first ones; all by default.

    Raises:
        ValueError: The folder is not a run, or a file is damaged.
    """
    if not isinstance(folder, str | Path):
        raise ValueError(f"{shown(folder)} is not a run: expected the path of its folder.")
    folder = Path(folder)
    if not exists(folder / layout.INFO):
        raise ValueError(f"{folder} is not a run: it has no {layout.INFO}.")
    info, path = read_info(folder / layout.INFO), folder / layout.FAILURE
    records, content = _read_rounds(folder, info.key), read_file(path)
    failure = None if content is None else typed(Failure, unsealed(content, path, pretty=True, owner=info.key), path)
    return first_rounds(Run(folder, info, records, failure), rounds)


def first_rounds(run: Run, rounds: int | None) -> Run:
    """Return a run limited to its first `rounds` rounds; the run itself if `rounds` is None.

    A run that stopped early has the same rounds for any limit beyond its end.
    """
    if rounds is None or (rounds >= run.info.experiment.rounds and not run.stopped_early):
        return run
    limited = {"experiment": run.info.experiment.model_copy(update={"rounds": rounds})}
    info = run.info.model_copy(update=limited | {"changed": run.info.changed | {"rounds": rounds}})
    failure = run.failure if run.failure and run.failure.round <= rounds else None
    return Run(run.folder, info, run.rounds[:rounds], failure)


def read_whole(folder: Path, rounds: int | None = None, known: Run | None = None) -> Run:
    """Read a run, unless `known`, and check all that tables, figures and pages need; raise a ValueError for damage."""
    try:
        run = read_run(folder, rounds) if known is None else known
        _ = run.majority, [run.arrays(record) for record in run.rounds], [run.summary(rule) for rule in run.info.rules]
    except UNFIT as error:  # forged files, with valid checksums
        raise damaged(folder, f"its files do not fit together ({type(error).__name__})") from error
    return run


def read_some(folders: Iterable[Path], tell: Callable[[str], None]) -> list[Run]:
    """Read runs; report damaged ones to `tell` and skip them."""
    runs = []
    for folder in folders:
        try:
            runs.append(read_whole(folder))
        except UNREADABLE as error:
            tell(unread_reason(error, folder))
    return runs


def unread_reason(error: BaseException, folder: Path) -> str:
    """Return a sentence on why a run cannot be read."""
    return f"{folder} cannot be read: {error.strerror or error}." if isinstance(error, OSError) else str(error)


def _read_rounds(folder: Path, key: str) -> list[RoundRecord]:
    path, pending_before = folder / layout.METRICS, exists(folder / layout.PENDING)
    done = committed(folder)  # read first: an active run appends a line before it commits
    if not done:
        layout.refuse_rounds_without(folder, layout.SERVER)
    lines = read_lines(path)
    pending = pending_before or exists(folder / layout.PENDING)  # whether the last committed round is not evaluated yet
    if len(lines) < done - pending:
        raise damaged(path, f"{len(lines)} lines for {done} committed rounds")
    rounds = [typed(RoundRecord, unsealed(line, path, owner=key), path) for line in lines[:done]]
    for number, record in enumerate(rounds, 1):
        if record.round != number:
            raise damaged(path, f"line {number} is that of round {record.round}")
    return rounds
