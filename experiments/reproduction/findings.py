"""State of the cells of a table or figure: finished, begun, diverged, damaged, not run, or without data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from protonorm.analysis.comparison import OPTIONAL, Reported, reported
from protonorm.analysis.statistics import Interval, mean_interval
from protonorm.config.components import describe
from protonorm.runs.layout import INFO, exists, find_runs
from protonorm.runs.run import UNREADABLE, Run, read_whole, unread_reason
from protonorm.runs.schema import read_info

from .cells import Cell, Column, Place, Study
from .profiles import TITLES, Profile, Protocol

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment
    from protonorm.session.result import Result

State = Literal["finished", "begun", "diverged", "damaged", "missing", "refused", "absent"]
Description = Mapping[str, Any]  # of a data set: its name, samples and hash


@dataclass(frozen=True)
class Outcome:
    """Cell with one seed."""

    cell: Cell
    seed: int
    experiment: Experiment
    key: str | None  # None without data
    missing: str = ""  # the data it lacks
    refused: str = ""  # why it could not be run now
    damaged: str = ""  # why its record cannot be read
    run: Run | None = None
    reported: Mapping[str, Reported | None] = field(default_factory=dict)  # the run's numbers, by rule

    @property
    def where(self) -> str:
        """Place in the table, as text."""
        return f"{self.cell.row}, {self.cell.column}"

    @property
    def reason(self) -> str:
        """Reason why there is no run to show; empty if there could be one."""
        return self.damaged or self.missing or (self.refused and f"Not run: {self.refused}")

    @property
    def done(self) -> int:
        """Number of finished rounds."""
        return len(self.run.rounds) if self.run else 0

    @property
    def progress(self) -> str:
        """Number of finished rounds, as text."""
        return f"{self.done} of {self.experiment.rounds} rounds"

    @property
    def state(self) -> State:
        """State of the cell."""
        if self.damaged:
            return "damaged"
        if self.run and (self.done >= self.experiment.rounds or self.run.stopped_early):
            return "finished"
        if self.run and self.run.failure:
            return "diverged"
        if self.done and (self.missing or not self.refused):  # without the data, the record is of another machine
            return "begun"
        return "missing" if self.missing else "refused" if self.refused else "absent"


@dataclass(frozen=True)
class Findings:
    """Outcomes of a table or figure under a profile and a protocol."""

    study: Study
    profile: Profile
    protocol: Protocol
    outcomes: tuple[Outcome, ...]
    command: str = ""

    @property
    def places(self) -> list[Place]:
        """Requested cells, each once, for any number of seeds."""
        return list(dict.fromkeys(outcome.cell.place for outcome in self.outcomes))

    @property
    def columns(self) -> list[Column]:
        """Requested columns."""
        requested = {column for _, column in self.places}
        return [column for column in self.study.columns if column.place in requested]

    @property
    def rows(self) -> list[str]:
        """Requested printed rows."""
        requested = {row for row, _ in self.places}
        return [row for row in self.study.rows if row in requested]

    @property
    def seeds(self) -> list[int]:
        """Requested seeds, sorted."""
        return sorted({outcome.seed for outcome in self.outcomes})

    def at(self, row: str, column: str) -> list[Outcome]:
        """List the outcomes of one cell, one per seed."""
        return [outcome for outcome in self.outcomes if outcome.cell.place == (row, column)]

    def finished(self, row: str, column: str) -> list[Run]:
        """List the finished runs of one cell, one per seed."""
        return [outcome.run for outcome in finished_runs(self.at(row, column)) if outcome.run]

    def run(self, row: str, column: str) -> Run | None:
        """Return the run of a cell to draw, that of the first seed with a started run; None if there is none."""
        started = (outcome for outcome in self.at(row, column) if outcome.done or outcome.state == "finished")
        return next((outcome.run for outcome in started), None)

    def result(self, row: str, column: str) -> Result | None:
        """Return the result of a cell, with its trained clients; None if there is none."""
        from protonorm.session.result import Result  # slow to import

        run = self.run(row, column)
        return next(
            (Result(outcome.experiment, run) for outcome in self.at(row, column) if run and outcome.run is run), None
        )


def expected_outcomes(study: Study, profile: Profile, protocol: Protocol, seeds: Sequence[int]) -> list[Outcome]:
    """Create the experiments of a study, with their keys where the data are available; records are not read yet."""
    return [_expect(study, cell, profile, protocol, seed) for seed in seeds for cell in study.cells]


def _expect(study: Study, cell: Cell, profile: Profile, protocol: Protocol, seed: int) -> Outcome:
    from protonorm.config.experiment import Experiment  # slow to import

    try:
        experiment = Experiment.of(study.settings(cell, profile, protocol, seed))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{study.name}, {cell.row}, {cell.column}: {error}") from error
    try:
        describe("dataset", experiment.dataset)
    except ValueError as error:
        name = str(getattr(experiment.dataset, "name", "The data set"))
        return Outcome(cell, seed, experiment, None, f"{TITLES.get(name, name)} is not prepared: {error}")
    return Outcome(cell, seed, experiment, experiment.key)


def read_outcomes(outcomes: Sequence[Outcome], root: Path, refused: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Read the current state of the runs; `refused` gives by key why some could not be run."""
    described = described_data(root) if any(outcome.key is None for outcome in outcomes) else []
    return tuple(_read(item, root, refused, described) for item in outcomes)


def described_data(root: Path) -> list[Description]:
    """List the data sets in the records of a folder, each once; unreadable records are skipped."""
    datasets: dict[str, Description] = {}
    for folder in find_runs(root):
        with suppress(*UNREADABLE):
            dataset = read_info(folder / INFO).experiment.dataset.model_dump(mode="json")
            datasets[json.dumps(dataset, sort_keys=True)] = dataset
    return list(datasets.values())


def recorded_keys(experiment: Experiment, root: Path, described: Sequence[Description]) -> list[str]:
    """List the keys of an experiment's records: several if they used different pictures of the same name.

    Published records come without pictures, so a record may exist here without its data.
    """
    fits = getattr(experiment.dataset, "fits", None)
    keys = [experiment.key_with(description) for description in described if fits and fits(description)]
    return [key for key in keys if exists(root / key / INFO)]


def _read(outcome: Outcome, root: Path, refused: Mapping[str, str], described: Sequence[Description]) -> Outcome:
    """Read a run and all numbers that tables need, so that damage is detected here and not in a table.

    Without the data, the record of another machine that had them is read, if there is one.
    """
    keys = [outcome.key] if outcome.key else recorded_keys(outcome.experiment, root, described)
    if len(keys) > 1:
        problem = f"{outcome.missing} Records of different data fit, so that none is shown: {', '.join(keys)}."
        return replace(outcome, missing=problem)
    if not keys:
        return outcome
    bare = replace(outcome, key=keys[0], refused=refused.get(outcome.key or "", ""))
    folder = root / keys[0]
    if not exists(folder / INFO):
        return bare
    try:
        run = read_whole(folder, outcome.experiment.rounds)  # it may have more rounds, which are not part of its key
    except UNREADABLE as error:
        reason = unread_reason(error, folder).rstrip(".")
        return replace(bare, damaged=f"{reason}; move {folder} away to run the cell again")
    numbers = {rule: reported(run, rule) for rule in run.info.rules}
    return replace(bare, run=replace(run), reported=numbers)  # a new Run, without the cached arrays


class Value(NamedTuple):
    """Our number in one place, in per cent, or why there is none."""

    mean: float | None = None
    text: str = ""
    note: str = ""  # where it diverged
    interval: Interval | None = None  # of the mean, over seeds; None for one seed
    best: str = ""  # mean of the best test rounds, which is optimistic; empty where these are reported anyway
    tests: Mapping[str, str] = {}  # the common test, and clients that never train, by name, where runs have them


def values(findings: Findings) -> dict[Place, Value]:
    """Compute the value of every cell."""
    return {place: cell_value(findings.at(*place), findings.protocol) for place in findings.places}


def cell_value(outcomes: Sequence[Outcome], protocol: Protocol, rule: str | None = None) -> Value:
    """Compute the value of a cell over seeds under a rule (the headline by default), in the reported rounds."""
    if not outcomes:
        return Value()
    for outcome in outcomes:
        if outcome.state == "damaged":
            return Value(text="damaged")
        if outcome.state == "diverged" and outcome.run and outcome.run.failure:
            return Value(text="-", note=f"diverged in round {outcome.run.failure.round} with seed {outcome.seed}")
    numbers = [
        outcome.reported.get(rule or outcome.run.info.headline) for outcome in finished_runs(outcomes) if outcome.run
    ]
    pairs = [
        (100 * accuracy.chosen.pooled, 100 * accuracy.beside.best.pooled)
        for accuracy in numbers
        if accuracy and accuracy.chosen
    ]
    if not pairs:  # the most informative reason over all seeds; "none": no accuracy under this rule
        states = {outcome.state: outcome.progress for outcome in reversed(outcomes)}
        texts = {"finished": "none", "missing": "no data", "refused": "not run", "begun": states.get("begun", "")}
        return Value(text=next((text for state, text in texts.items() if state in states), "not run yet"))
    accuracies, bests = zip(*pairs, strict=True)
    note = f" ({share})" if (share := share_of_seeds(len(pairs), len(outcomes))) else ""
    text = _over_seeds(accuracies, protocol) + note
    parts = {name: [getattr(accuracy, name) for accuracy in numbers if accuracy] for name in OPTIONAL}
    shares = {name: [100 * part.pooled for part in given if part] for name, given in parts.items()}
    tests = {name: _over_seeds(given, protocol) for name, given in shares.items() if given}
    best = "" if protocol.is_optimistic else f"{fmean(bests):.2f}"
    return Value(fmean(accuracies), text, "", mean_interval(accuracies), best, tests)


def _over_seeds(accuracies: Sequence[float], protocol: Protocol) -> str:
    spread = protocol.spread(accuracies)
    return f"{fmean(accuracies):.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def finished_runs(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes whose runs are finished."""
    return [outcome for outcome in outcomes if outcome.state == "finished" and outcome.run]


def share_of_seeds(finished: int, requested: int) -> str:
    """Describe how many of the requested seeds a number uses; empty if all."""
    return "" if finished == requested else f"{finished} of {requested} seeds"
