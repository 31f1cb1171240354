"""A run as its record tells it: rounds, accuracies by client and class, prototypes. Nothing here needs torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.files import damaged, read_lines, unsealed
from protonorm.runs import layout
from protonorm.runs.accuracy import accuracy_of, majority_correct
from protonorm.runs.arrays import BESIDE, ArrayCache, Arrays, decode_arrays, read_arrays, unfit
from protonorm.runs.choice import Choice, choose_round, has_stopped
from protonorm.runs.info import find_client, typed
from protonorm.runs.layout import committed, is_archived, snapshot_rounds, stamp
from protonorm.runs.packed import Blocks
from protonorm.runs.schema import Accuracy, Failure, Provenance, RoundRecord, RunInfo, Seconds
from protonorm.runs.standing import counted_rounds

Shares = NDArray[np.float64]


class RoundSummary(NamedTuple):
    """A round under one rule."""

    round: int
    pooled: float
    mean: float
    worst: float


class Summary(NamedTuple):
    """A run under one rule: its best and last round, and the mean of each client's own best."""

    best: RoundSummary
    last: RoundSummary
    own_best: float


class Population(NamedTuple):
    """Samples of each client and class."""

    train: NDArray[np.int64]  # (M, K)
    validation: NDArray[np.int64]  # (M, K), none of the training samples
    test: NDArray[np.int64]  # (M, K)


class Prototypes(NamedTuple):
    """The global prototypes after a round."""

    classes: NDArray[np.int64]  # (K',)
    vectors: Shares  # (K', d)


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it, read without torch; what is damaged raises a ValueError that names the file."""

    folder: Path  # where it is
    info: RunInfo  # settings, rules, classes, networks, versions: experiment.json
    rounds: list[RoundRecord]  # the committed ones
    failure: Failure | None  # why it stopped, if it did

    @property
    def finished(self) -> bool:
        """Tell whether all rounds are done, or the run ended early."""
        return len(self.rounds) >= self.info.experiment.rounds or self.stopped_early

    @property
    def stopped_early(self) -> bool:
        """Tell whether the validation accuracy has not risen for as many evaluations as the run has patience."""
        counted = counted_rounds(self.info, self.rounds)
        return has_stopped(counted, self.info.headline, self.info.early_stopping)

    @cached_property
    def chosen(self) -> Choice | None:
        """Choose the round that is reported, under the method's headline rule; None if no round was evaluated.

        It has the best mean validation accuracy of the rounds in which everybody was evaluated, the first of equals.
        Without a validation part it is the best test round, which is optimistic.
        """
        return choose_round(self.rounds, self.info.headline)

    @cached_property
    def population(self) -> Population:
        """Read who holds what: `train`, `validation` and `test`, numbers of samples (M, K) each."""
        path = self.folder / layout.POPULATION
        found = read_arrays(path, stamp(self.info.key, "population", 0))
        shape = (self.info.experiment.clients, len(self.info.classes))
        if found.keys() != set(Population._fields) or any(one.shape != shape for one in found.values()):
            raise damaged(path, f"it does not hold the samples of {shape[0]} clients and {shape[1]} classes")
        return Population(**found)

    @property
    def knows_samples(self) -> bool:
        """Tell whether the record says who holds what; in a real federation each client knows it of itself alone."""
        return any(part.any() for part in self.population)

    @cached_property
    def majority(self) -> Accuracy | None:
        """Say what guessing each client's most frequent training class gives; None if nobody tests."""
        train, _, test = self.population
        return accuracy_of(majority_correct(train, test).sum(1), test.sum(1))

    def client_name(self, id: int) -> str:
        """Name a client: as its folder or file is named, or by its number."""
        return self.info.client_name(id)

    def find_client(self, client: str | int) -> int:
        """Find a client's number by its name or its number; of a text, a name counts first."""
        return find_client(self.info, client)

    def arrays(self, record: RoundRecord) -> Arrays:
        """Read the arrays of a round: who was evaluated, counts by client and class, margins."""
        found = self._arrays.get(record.round)
        if found is None:
            found = self._read_arrays(record)
            self._arrays.put(record.round, found)
        return found

    def by_client(self, record: RoundRecord, rule: str, part: str = "test") -> Shares:
        """Give each client's accuracy (M,) in a round; NaN for one that has no sample or was not evaluated."""
        return self._shares(record, rule, part, "clients", self.info.experiment.clients)

    def support(self, record: RoundRecord, part: str = "test") -> NDArray[np.int64]:
        """Count the samples (M,) that each client was evaluated on in a round; 0 for one that was not."""
        found, counts = self.arrays(record), np.zeros(self.info.experiment.clients, np.int64)
        if (known := found.get(f"{part}.support.clients")) is not None:
            counts[found.get("ids", np.arange(len(counts)))] = known
        return counts

    def measured(self, record: RoundRecord, rule: str, measure: str, part: str = "test") -> Shares:
        """Give each client's `balanced`, `f1`, `log_loss` or `calibration` (M,) in a round; NaN where there is none."""
        if measure not in BESIDE:
            raise ValueError(f"There is no measure {measure!r} beside accuracy; known: {', '.join(BESIDE)}.")
        found, values = self.arrays(record), np.full(self.info.experiment.clients, np.nan)
        if (known := found.get(f"{part}.{measure}.clients.{rule}")) is not None:
            values[found.get("ids", np.arange(len(values)))] = known
        return values

    def by_class(self, record: RoundRecord, rule: str, part: str = "test") -> Shares:
        """Give each class's accuracy (K,) in a round, over all clients that were evaluated; NaN where there is none."""
        return self._shares(record, rule, part, "classes", len(self.info.classes))

    def margins(self, record: RoundRecord) -> tuple[NDArray[np.int64], Shares] | None:
        """Give the classes (K',) that had prototypes after a round, and their margins (K',); None if none had."""
        found = self.arrays(record)
        return (found["margins.classes"], found["margins"]) if "margins" in found else None

    def summary(self, rule: str | None = None) -> Summary | None:
        """Condense the rounds under a rule, the method's headline if none is given; None if it never existed."""
        rule = rule or self.info.headline
        known = [(record, found) for record in self.rounds if (found := record.rules.get(rule))]
        if not known:
            return None
        everybody = [pair for pair in known if pair[0].evaluated == "all"]  # others may have had the easier clients
        own = np.full(self.info.experiment.clients, np.nan)  # (M,) each client's own best
        for record, _ in known:
            own = np.fmax(own, self.by_client(record, rule))  # NaN where a client was not evaluated
        return Summary(
            _brief(*max(everybody or known, key=lambda pair: pair[1].pooled)),
            _brief(*known[-1]),
            float(f"{own[~np.isnan(own)].mean():.6g}"),
        )

    @cached_property
    def seconds(self) -> dict[int, float]:
        """Read how long each committed round took; times that are lost or damaged are left out."""
        path, found = self.folder / layout.TIMINGS, {}
        for line in read_lines(path):
            try:
                seconds = typed(Seconds, unsealed(line, path, owner=self.info.key), path)
            except ValueError:
                continue
            found[seconds.of] = seconds.round
        return {record.round: found[record.round] for record in self.rounds if record.round in found}

    @cached_property
    def starts(self) -> list[Provenance]:
        """Tell where the rounds come from, for each time the run was begun or went on; what is damaged is left out."""
        path, found = self.folder / layout.PROVENANCE, []
        for line in read_lines(path):
            with suppress(ValueError):
                found.append(typed(Provenance, unsealed(line, path, owner=self.info.key), path))
        return found

    @property
    def provenance(self) -> Provenance | None:
        """Tell where the first rounds come from; None if that is not on record."""
        return self.starts[0] if self.starts and self.starts[0].done == 0 else None

    @property
    def lost_provenance(self) -> str:
        """Say that it is not on record, or not all of it, where rounds come from; nothing if it is."""
        if self.provenance and len(self.starts) == len(read_lines(self.folder / layout.PROVENANCE)):
            return ""
        return f"{layout.PROVENANCE} is missing or damaged: it does not tell where all rounds come from."

    def snapshots(self) -> list[int]:
        """List the committed rounds whose prototypes should be in the record; none if it was archived without them."""
        if is_archived(self.folder) and not (self.folder / layout.PROTOTYPES).exists():
            return []
        kept = snapshot_rounds(max(len(self.rounds), committed(self.folder)))  # it may have more than are shown
        return [record.round for record in self.rounds if record.round in kept and record.prototypes]

    def prototypes(self, round: int) -> Prototypes:
        """Read the global prototypes after a round: their `classes` (K',) and `vectors` (K', d)."""
        path = self.folder / layout.PROTOTYPES / f"{round}.safetensors"
        found = read_arrays(path, stamp(self.info.key, "prototypes", round))
        classes, vectors = (found.get(name, np.zeros(0)) for name in ("classes", "prototypes"))
        shaped = vectors.ndim == 2 and len(vectors) and classes.shape == vectors.shape[:1]
        if not shaped or classes.min() < 0 or classes.max() >= len(self.info.classes):
            raise damaged(path, "it does not hold prototypes and their classes")
        return Prototypes(classes.astype(np.int64), vectors.astype(np.float64))

    def figures(self) -> Arrays:
        """Read the arrays that the server left for figures; none if it left none."""
        path = self.folder / layout.FIGURES
        return read_arrays(path, stamp(self.info.key, "figures", 1)) if path.exists() else {}

    @cached_property
    def _arrays(self) -> ArrayCache:
        return ArrayCache()

    @cached_property
    def _evaluations(self) -> Blocks:
        return Blocks(self.folder / layout.EVALUATIONS)

    def _read_arrays(self, record: RoundRecord) -> Arrays:
        path, block = self._evaluations.path, self._evaluations.read(record.arrays.start, record.arrays.size)
        found = decode_arrays(block, path, stamp(self.info.key, "evaluation", record.round))
        if wrong := unfit(found, self.info.experiment.clients, len(self.info.classes)):
            raise damaged(path, f"{', '.join(wrong)} of round {record.round} cannot be")
        return found

    def _shares(self, record: RoundRecord, rule: str, part: str, unit: str, size: int) -> Shares:
        found, shares = self.arrays(record), np.full(size, np.nan)
        if f"{part}.correct.{unit}.{rule}" not in found:
            return shares
        support = found[f"{part}.support.{unit}"]
        places = found.get("ids", np.arange(size)) if unit == "clients" else np.arange(size)
        known = support > 0
        shares[places[known]] = found[f"{part}.correct.{unit}.{rule}"][known] / support[known]
        return shares


def _brief(record: RoundRecord, found: Accuracy) -> RoundSummary:
    return RoundSummary(record.round, found.pooled, found.mean, found.worst)
