"""How the cells of a table or figure stand: finished, begun, diverged, damaged, not run, or without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protonorm.analysis.comparison import reported
from protonorm.analysis.reading import UNREADABLE, read_whole, unread_reason
from protonorm.analysis.row import Reported
from protonorm.config.components import describe
from protonorm.reproduction.cells import Cell, Column, Place
from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.protocols import Protocol
from protonorm.reproduction.records import Description, described_data, recorded_keys
from protonorm.reproduction.study import Study
from protonorm.runs.layout import INFO
from protonorm.runs.run import Run

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment
    from protonorm.session.result import Result

State = Literal["finished", "begun", "diverged", "damaged", "missing", "refused", "absent"]

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "flowers102": "Flowers-102", "tinyimagenet": "Tiny ImageNet"}


@dataclass(frozen=True)
class Outcome:
    """A cell with one seed."""

    cell: Cell
    seed: int
    experiment: Experiment
    key: str | None  # None without data
    missing: str = ""  # what data it lacks
    refused: str = ""  # why it could not be run now
    damaged: str = ""  # why its record cannot be read
    run: Run | None = None
    reported: Mapping[str, Reported | None] = field(default_factory=dict)  # the run's numbers, by rule

    @property
    def where(self) -> str:
        """Name its place in the table."""
        return f"{self.cell.row}, {self.cell.column}"

    @property
    def reason(self) -> str:
        """Say why there is no run to show; nothing if there could be one."""
        return self.damaged or self.missing or (self.refused and f"Not run: {self.refused}")

    @property
    def progress(self) -> str:
        """Say how many rounds are done."""
        return f"{len(self.run.rounds) if self.run else 0} of {self.experiment.rounds} rounds"

    @property
    def state(self) -> State:
        """Name how it stands."""
        if self.damaged:
            return "damaged"
        if self.run and (len(self.run.rounds) >= self.experiment.rounds or self.run.stopped_early):
            return "finished"
        if self.run and self.run.failure:
            return "diverged"
        if self.run and self.run.rounds and self.missing:
            return "begun"  # by somebody who had the data
        if self.missing or self.refused:
            return "missing" if self.missing else "refused"
        return "begun" if self.run and self.run.rounds else "absent"


@dataclass(frozen=True)
class Findings:
    """All that is known about a table or figure under a profile and a protocol."""

    study: Study
    profile: Profile
    protocol: Protocol
    outcomes: tuple[Outcome, ...]
    command: str = ""

    @property
    def columns(self) -> list[Column]:
        """List the columns that are asked for."""
        held = {outcome.cell.column for outcome in self.outcomes}
        return [column for column in self.study.columns if column.place in held]

    @property
    def groups(self) -> list[str]:
        """List the headings above the columns that are asked for; nothing if there are none."""
        found = [column.group for column in self.columns]
        return found if any(found) else []

    @property
    def rows(self) -> list[str]:
        """List the printed rows that are asked for."""
        held = {outcome.cell.row for outcome in self.outcomes}
        return [row for row in self.study.rows if row in held]

    @property
    def places(self) -> list[Place]:
        """List the cells that are asked for, each once, whatever the number of seeds."""
        return list(dict.fromkeys(outcome.cell.place for outcome in self.outcomes))

    def at(self, row: str, column: str) -> list[Outcome]:
        """List the seeds of one cell."""
        return [outcome for outcome in self.outcomes if outcome.cell.place == (row, column)]

    def run(self, row: str, column: str) -> Run | None:
        """Give the run of a cell to draw from, the first seed's that has begun; None if there is none."""
        found = self._begun(row, column)
        return found.run if found else None

    def result(self, row: str, column: str) -> Result | None:
        """Give a cell's trained clients; None if there are none."""
        from protonorm.session.result import Result  # slow to import

        found = self._begun(row, column)
        return Result(found.experiment, found.run) if found and found.run else None

    def _begun(self, row: str, column: str) -> Outcome | None:
        shown = (one for one in self.at(row, column) if one.run and (one.run.rounds or one.state == "finished"))
        return next(shown, None)


def expected_outcomes(study: Study, profile: Profile, protocol: Protocol, seeds: Sequence[int]) -> list[Outcome]:
    """Make the experiments of a study, with their keys where the data are there; their records are not read yet."""
    return [_expect(study, cell, profile, protocol, seed) for seed in seeds for cell in study.cells]


def _expect(study: Study, cell: Cell, profile: Profile, protocol: Protocol, seed: int) -> Outcome:
    from protonorm.config.experiment import Experiment  # slow to import

    try:
        experiment = Experiment.of(study.settings(cell, profile, protocol, seed))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{study.name}, {cell.row}, {cell.column}: {error}") from error
    missing = _missing(experiment.dataset)
    return Outcome(cell, seed, experiment, None if missing else experiment.key, missing)


def _missing(dataset: Any) -> str:
    """Say why a data set cannot be used; nothing if it can."""
    try:
        describe("dataset", dataset)
    except ValueError as error:
        name = str(getattr(dataset, "name", "The data set"))
        return f"{TITLES.get(name, name)} is not prepared: {error}"
    return ""


def read_outcomes(outcomes: Sequence[Outcome], root: Path, refused: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Read how the runs stand now; `refused` says by key why some could not be run."""
    known = described_data(root) if any(one.key is None for one in outcomes) else []
    return tuple(
        _read(one, root / one.key, refused.get(one.key, "")) if one.key else _read_without_data(one, root, known)
        for one in outcomes
    )


def _read_without_data(one: Outcome, root: Path, known: Sequence[Description]) -> Outcome:
    """Read the record of somebody who had the data, if there is one."""
    found = recorded_keys(one.experiment, root, known)
    if len(found) > 1:
        several = f"{one.missing} Records of different data fit, so that none is shown: {', '.join(found)}."
        return replace(one, missing=several)
    return _read(replace(one, key=found[0]), root / found[0], "") if found else one


def _read(one: Outcome, folder: Path, refused: str) -> Outcome:
    """Read a run and all that tables need of it, so that damage shows here, and not in a table."""
    bare = replace(one, run=None, reported={}, refused=refused, damaged="")
    if not (folder / INFO).exists():
        return bare
    try:
        run = read_whole(folder, one.experiment.rounds)  # it may have more: they are no part of its key
    except UNREADABLE as error:
        reason = unread_reason(error, folder).rstrip(".")
        return replace(bare, damaged=f"{reason}; move {folder} away to run the cell again")
    numbers = {rule: reported(run, rule) for rule in run.info.rules}
    return replace(bare, run=replace(run), reported=numbers)  # a new Run, without the arrays that its numbers needed
