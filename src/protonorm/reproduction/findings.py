"""How the cells of a table or figure stand: finished, begun, diverged, not run yet, or without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.components import describe
from protonorm.data import DATASETS
from protonorm.history import Run, read_run
from protonorm.reproduction.cells import Cell, Column, Place
from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.study import Study

if TYPE_CHECKING:
    from protonorm.experiment import Experiment

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "flowers102": "Flowers-102", "tinyimagenet": "Tiny ImageNet"}


@dataclass(frozen=True)
class Outcome:
    """A cell with one seed."""

    cell: Cell
    seed: int
    experiment: Experiment
    key: str | None  # None without data
    run: Run | None
    missing: str = ""  # why it cannot be run here

    @property
    def place(self) -> Place:
        """Say where it stands in the table."""
        return self.cell.row, self.cell.column

    @property
    def state(self) -> str:
        """Name how it stands."""
        if self.run and self.run.finished:
            return "finished"
        if self.run and self.run.failure:
            return "diverged"
        if self.missing:
            return "missing"
        return "begun" if self.run and self.run.history else "absent"


@dataclass(frozen=True)
class Findings:
    """All that is known about a table or figure under a profile."""

    study: Study
    profile: Profile
    outcomes: tuple[Outcome, ...]
    command: str = ""

    @property
    def columns(self) -> list[Column]:
        """List the columns that are asked for."""
        held = {outcome.cell.column for outcome in self.outcomes}
        return [column for column in self.study.columns if column.place in held]

    @property
    def rows(self) -> list[str]:
        """List the printed rows that are asked for."""
        held = {outcome.cell.row for outcome in self.outcomes}
        return [row for row in self.study.rows if row in held]

    def at(self, row: str, column: str) -> list[Outcome]:
        """List the seeds of one cell."""
        return [outcome for outcome in self.outcomes if outcome.place == (row, column)]

    def run(self, row: str, column: str) -> Run | None:
        """Give the run of a cell to draw from, the first seed's that has begun; None if there is none."""
        found = self.begun(row, column)
        return found.run if found else None

    def begun(self, row: str, column: str) -> Outcome | None:
        """Find the first seed of a cell that has something to show."""
        shown = (one for one in self.at(row, column) if one.run and (one.run.history or one.run.finished))
        return next(shown, None)

    def result(self, row: str, column: str) -> Any:
        """Give a cell's trained clients as `Result`; None if there are none."""
        from protonorm.result import Result  # slow to import

        found = self.begun(row, column)
        return Result(found.experiment, found.run) if found and found.run else None


def expect(study: Study, profile: Profile, seeds: Sequence[int], only: Sequence[str] = ()) -> Iterator[Outcome]:
    """Make the experiments of a study, with their keys where the data are there."""
    from protonorm.experiment import Experiment

    for seed in seeds:
        for cell in study.cells:
            if any(text.lower() not in f"{cell.row} {cell.column}".lower() for text in only):
                continue
            experiment = Experiment.of(study.settings(cell, profile, seed))
            if missing := _missing(experiment.dataset):
                yield Outcome(cell, seed, experiment, None, None, missing)
            else:
                yield Outcome(cell, seed, experiment, experiment.key, None)


def _missing(dataset: Any) -> str:
    """Say why a data set cannot be used; nothing if it can."""
    try:
        describe(DATASETS, dataset)
    except ValueError as error:
        name = str(getattr(dataset, "name", "The data set"))
        return f"{TITLES.get(name, name)} is not prepared: {error}"
    return ""


def look(outcomes: Sequence[Outcome], root: Path, refused: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Read how the runs stand now; `refused` says by key why some could not be run."""
    return tuple(
        replace(one, run=_read(root, one.key), missing=refused.get(one.key or "", one.missing)) for one in outcomes
    )


def _read(root: Path, key: str | None) -> Run | None:
    return read_run(root / key) if key and (root / key / "experiment.json").exists() else None
