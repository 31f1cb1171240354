"""Run what is missing, one cell after the other, and write what is there after each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from protonorm.errors import Diverged, Failed
from protonorm.files import make_folder
from protonorm.reproduction.estimate import Estimate, Work, duration, work_left
from protonorm.reproduction.findings import Findings, Outcome, expected_outcomes, read_outcomes
from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.protocols import Protocol
from protonorm.reproduction.study import Study
from protonorm.reproduction.writing import Written, refuse_foreign_files, write

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment
    from protonorm.federation.rounds import Round

    Watch = Callable[[Round], None]
    Follow = Callable[[Experiment], AbstractContextManager[Watch]]

Tell = Callable[[str], None]

SHARE = 0.1  # of the time that writing may take while cells are run


def ignore(_: object) -> None:
    """Take no notice of a sentence or a round."""


def unwatched(_: object) -> AbstractContextManager[Watch]:
    """Follow a run without showing anything."""
    return nullcontext(ignore)


class Throttle:
    """Leaves calls out that would take more than their share of the time: short runs would only be drawn."""

    def __init__(self) -> None:
        self._next = 0.0

    def call(self, action: Callable[[], object]) -> None:
        """Do something, unless it is too soon after the last time."""
        start = time.monotonic()
        if start >= self._next:
            action()
            end = time.monotonic()
            self._next = end + (end - start) * (1 / SHARE - 1)


@dataclass
class Reproduction:
    """Tables and figures to make under a profile and a protocol, in a folder of runs."""

    studies: Sequence[Study]
    profile: Profile
    protocol: Protocol
    root: Path  # of all runs
    folder: Path  # of what is written
    command: str
    seeds: Sequence[int]
    _expected: dict[str, list[Outcome]] = field(default_factory=dict, init=False)  # by study
    _refused: dict[str, str] = field(default_factory=dict, init=False)  # by key: why a cell could not be run

    def prepare(self, *, run: bool = True) -> None:
        """Refuse what cannot be run or written before anything is."""
        for study in self.studies:
            self.findings(study)
        for folder in (self.folder, self.root) if run else (self.folder,):
            check_writable(folder)
        for study in self.studies:
            refuse_foreign_files(study, self.folder)

    def findings(self, study: Study) -> Findings:
        """Read how a study stands."""
        if study.name not in self._expected:
            self._expected[study.name] = expected_outcomes(study, self.profile, self.protocol, self.seeds)
        outcomes = read_outcomes(self._expected[study.name], self.root, self._refused)
        return Findings(study, self.profile, self.protocol, outcomes, self.command)

    def outcomes(self) -> list[Outcome]:
        """Read how all cells of all studies stand."""
        return [one for study in self.studies for one in self.findings(study).outcomes]

    def pending(self, outcomes: Sequence[Outcome] | None = None) -> dict[str, Outcome]:
        """List the runs that are not done, by key: all of the first seed first; a run that diverged is done.

        Cells that differ in the number of rounds may share a run; it is listed with the most that are asked for.
        """
        found: dict[str, Outcome] = {}
        for one in sorted(
            self.outcomes() if outcomes is None else outcomes, key=lambda one: self.seeds.index(one.seed)
        ):
            if one.key and not one.missing and one.state in ("absent", "begun"):
                longest = found.setdefault(one.key, one)
                found[one.key] = one if one.experiment.rounds > longest.experiment.rounds else longest
        return found

    def write(self, key: str | None = None) -> list[Written]:
        """Write all studies, or those that a run is part of."""
        chosen = [
            study
            for study in self.studies
            if key is None or any(one.key == key for one in self._expected.get(study.name, ()))
        ]
        return [write(self.findings(study), self.folder) for study in chosen]

    def run(
        self,
        engine: str | None = None,
        workers: int | None = None,
        tell: Tell = ignore,
        follow: Follow = unwatched,
    ) -> list[Written]:
        """Run what is missing, and write what is there after each run, also when one is interrupted.

        `tell` is given sentences; `follow` gives for each experiment what is called with its rounds.
        """
        outcomes = self.outcomes()
        waiting = self.pending(outcomes)
        self._tidy(outcomes)
        estimate, throttle = _estimate(outcomes), Throttle()
        for number, (key, one) in enumerate(waiting.items(), 1):
            left = duration(estimate.left([_work(other) for other in list(waiting.values())[number - 1 :]]))
            tell(f"{number} of {len(waiting)} runs: {one.where}, seed {one.seed}; about {left} left for all.")
            try:
                self._run_one(one, engine, workers, estimate, follow)
            except Diverged as error:
                tell(str(error))
            except (Failed, ValueError, BlockingIOError) as error:  # it cannot be run here; the others can
                self._refused[key] = str(error)
                tell(f"Skipped: {error}")
            except BaseException:  # interrupted: show what is there
                self._write_last(tell)
                raise
            throttle.call(partial(self.write, key))
        return self.write()

    def _tidy(self, outcomes: Sequence[Outcome]) -> None:
        """Remove what a kill has left in the folders of runs that are done."""
        from protonorm.session.running import tidy  # slow to import

        for key in {one.key for one in outcomes if one.key and one.state == "finished"}:
            tidy(self.root / key)

    def _run_one(
        self, one: Outcome, engine: str | None, workers: int | None, estimate: Estimate, follow: Follow
    ) -> None:
        from protonorm.session.running import run  # slow to import

        work = _work(one)
        chosen = (engine or self.profile.engine) if one.experiment.rounds else "serial"  # nobody trains: no process
        with follow(one.experiment) as show:

            def watch(round: Round) -> None:
                estimate.learn(work, round.seconds["round"])
                show(round)

            several = None if chosen == "serial" else workers
            run(one.experiment, out=self.root, engine=chosen, workers=several, watch=watch)

    def _write_last(self, tell: Tell) -> None:
        """Write what is there while another error is on its way, which matters more than one here."""
        try:
            self.write()
        except (OSError, ValueError) as error:
            tell(f"What is there could not be written: {error}")


def check_writable(folder: Path) -> None:
    """Make a folder that files can be written to, or refuse it."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"Nothing can be written to {folder}: it is, or is inside, a file.") from None
    except OSError as error:
        raise ValueError(f"Nothing can be written to the folder {folder}: {error.strerror}.") from error


def _estimate(outcomes: Sequence[Outcome]) -> Estimate:
    """Learn from what was run before."""
    estimate = Estimate()
    for one in {one.key: one for one in outcomes}.values():
        if one.run:
            estimate.learn(_work(one), sum(one.run.seconds.values()), len(one.run.seconds))
    return estimate


def _work(one: Outcome) -> Work:
    return work_left(one.experiment.model_dump(mode="json"), len(one.run.rounds) if one.run else 0)
