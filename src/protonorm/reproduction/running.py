"""Run what is missing, one cell after the other, and write what is there after each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from protonorm.errors import Diverged
from protonorm.history import Run
from protonorm.reproduction.estimate import Clock, Work, clock, recorded, work
from protonorm.reproduction.findings import Findings, Outcome, expect, look
from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.study import Study
from protonorm.reproduction.writing import write

if TYPE_CHECKING:
    from protonorm.federation import Round

Tell = Callable[[str], None]
SHARE = 0.1  # of the time that writing may take while cells are run


class Pace:
    """Let writing wait while it would take more than its share of the time: short runs would only be drawn."""

    def __init__(self) -> None:
        self._next = 0.0

    def spend(self, write: Callable[[], object]) -> None:
        """Write, unless it is too soon."""
        start = time.monotonic()
        if start >= self._next:
            write()
            end = time.monotonic()
            self._next = end + (end - start) * (1 / SHARE - 1)


@dataclass(frozen=True)
class Reproduction:
    """Tables and figures to make under a profile, in a folder of runs."""

    studies: Sequence[Study]
    profile: Profile
    root: Path  # of all runs
    folder: Path  # of what is written
    command: str
    seeds: Sequence[int]
    expected: dict[str, list[Outcome]] = field(default_factory=dict)  # by study
    refused: dict[str, str] = field(default_factory=dict)  # by key: why a cell could not be run
    failed: dict[str, dict[str, str]] = field(default_factory=dict)  # by study: what could not be made, and why

    def prepare(self) -> None:
        """Refuse what cannot be run or written before anything is."""
        for study in self.studies:
            self.findings(study)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"Nothing can be written to {self.folder}: it is, or is inside, a file.") from None
        except OSError as error:
            raise ValueError(f"Nothing can be written to the folder {self.folder}: {error.strerror}.") from error

    def findings(self, study: Study) -> Findings:
        """Read how a study stands."""
        if study.name not in self.expected:
            self.expected[study.name] = list(expect(study, self.profile, self.seeds))
        outcomes = look(self.expected[study.name], self.root, self.refused)
        failed = self.failed.setdefault(study.name, {})
        return Findings(study, self.profile, outcomes, self.command, failed)

    def pending(self) -> dict[str, Outcome]:
        """List the runs that are not done, by key: all of the first seed first; a run that diverged is done."""
        waiting = [one for study in self.studies for one in self.findings(study).outcomes]
        waiting.sort(key=lambda one: self.seeds.index(one.seed))
        return {one.key: one for one in waiting if one.key and one.state in ("absent", "begun")}

    def write(self, key: str | None = None) -> list[Path]:
        """Write all studies, or those that a run is part of."""
        written: list[Path] = []
        for study in self.studies:
            if key is None or any(one.key == key for one in self.expected[study.name]):
                self.failed.pop(study.name, None)  # it is tried again
                written += write(self.findings(study), self.folder)
        return written

    def run(self, engine: str | None, workers: int | None, tell: Tell) -> list[Path]:
        """Run what is missing; what is there is written after each run, also when one is interrupted."""
        waiting = self.pending()
        timer, pace = self._timer(), Pace()
        for number, (key, one) in enumerate(waiting.items(), 1):
            left = [_work(other) for other in list(waiting.values())[number - 1 :]]
            tell(f"{number} of {len(waiting)} runs: {one.cell.row}, {one.cell.column}, seed {one.seed}; "
                 f"about {clock(timer.left(left))} left for all.")  # fmt: skip
            try:
                self._run_one(one, engine or self.profile.engine, workers, timer)
            except Diverged as error:
                tell(str(error))
            except (ValueError, BlockingIOError) as error:  # it cannot be run here; the others can
                self.refused[key] = str(error)
                tell(f"Skipped: {error}")
            except BaseException:  # interrupted: show what is there
                self._write_last(tell)
                raise
            pace.spend(partial(self.write, key))
        return self.write()

    def _write_last(self, tell: Tell) -> None:
        """Write what is there while another error is on its way, which matters more than one here."""
        try:
            self.write()
        except (OSError, ValueError) as error:
            tell(f"What is there could not be written: {error}")

    def _run_one(self, one: Outcome, engine: str | None, workers: int | None, timer: Clock) -> Run:
        from protonorm.progress import Teller
        from protonorm.session import run

        kind = _work(one)
        experiment = one.experiment
        engine = engine if experiment.rounds else "serial"  # nobody trains: no process to start
        with Teller(experiment.key, experiment.rounds, experiment.algorithm.headline) as teller:

            def watch(round: Round) -> None:
                timer.learn(kind, round.seconds["round"])
                teller(round)

            return run(experiment, out=self.root, engine=engine, workers=workers, watch=watch).run

    def _timer(self) -> Clock:
        """Learn from what was run before."""
        timer = Clock()
        seen: Mapping[str, Outcome] = {
            one.key: one for study in self.studies for one in self.findings(study).outcomes if one.key and one.run
        }
        for key, one in seen.items():
            taken = recorded(self.root / key)
            timer.learn(_work(one), sum(taken), len(taken))
        return timer


def _work(one: Outcome) -> Work:
    plain = one.experiment.model_dump(mode="json")
    return work(plain, len(one.run.history) if one.run else 0)
