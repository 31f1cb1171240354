"""How the cells of a table or figure stand: finished, begun, diverged, damaged, not run, or without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError)  # what a damaged record raises
ACCURACIES = ("pooled", "mean", "worst")
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "flowers102": "Flowers-102", "tinyimagenet": "Tiny ImageNet"}


@dataclass(frozen=True)
class Outcome:
    """A cell with one seed."""

    cell: Cell
    seed: int
    experiment: Experiment
    key: str | None  # None without data
    run: Run | None
    missing: str = ""  # what data it lacks
    refused: str = ""  # why it could not be run now
    damaged: str = ""  # why its record cannot be read

    @property
    def place(self) -> Place:
        """Say where it stands in the table."""
        return self.cell.row, self.cell.column

    @property
    def reason(self) -> str:
        """Say why there is no run to show; nothing if there could be one."""
        return self.damaged or self.missing or (self.refused and f"Not run: {self.refused}")

    @property
    def state(self) -> str:
        """Name how it stands."""
        if self.damaged:
            return "damaged"
        if self.run and self.run.finished:
            return "finished"
        if self.run and self.run.failure:
            return "diverged"
        if self.missing or self.refused:
            return "missing" if self.missing else "refused"
        return "begun" if self.run and self.run.history else "absent"


@dataclass(frozen=True)
class Findings:
    """All that is known about a table or figure under a profile."""

    study: Study
    profile: Profile
    outcomes: tuple[Outcome, ...]
    command: str = ""
    failed: dict[str, str] = field(default_factory=dict)  # what could not be made of the records, and why

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


def expect(study: Study, profile: Profile, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Make the experiments of a study, with their keys where the data are there."""
    from protonorm.experiment import Experiment

    for seed in seeds:
        for cell in study.cells:
            try:
                experiment = Experiment.of(study.settings(cell, profile, seed))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{study.name}, {cell.row}, {cell.column}: {error}") from error
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
    return tuple(_look(one, root / one.key, refused.get(one.key, "")) if one.key else one for one in outcomes)


def _look(one: Outcome, folder: Path, refused: str) -> Outcome:
    if not (folder / "experiment.json").exists():
        return replace(one, run=None, refused=refused, damaged="")
    try:
        run = read_run(folder)
        _try_out(run)
    except UNREADABLE as error:
        reason = f"{folder} is damaged ({explain(error)}); move it away to run the cell again"
        return replace(one, run=None, refused=refused, damaged=reason)
    return replace(one, run=run, refused=refused, damaged="")


def _try_out(run: Run) -> None:
    """Ask a record for everything that tables take from it, so that a damaged one shows here and not there."""
    rounds = int(run.experiment["rounds"]) + int(run.failure["round"] if run.failure else 0)
    found = [run.summary(rule) for rule in run.about["rules"]]
    numbers = [one[round][name] for one in found if one for round in ("best", "last") for name in ACCURACIES]
    if run.about["headline"] not in run.about["rules"] or rounds < 0 or not all(0 <= one <= 1 for one in numbers):
        raise ValueError("its headline, rounds or accuracies are none")
    dict(run.about.get("versions") or {})


def explain(error: Exception) -> str:
    """Say what was wrong with a record; a lone name, as of a KeyError, says too little."""
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".") or type(error).__name__
