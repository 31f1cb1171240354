"""Run what is missing of a grid: side by side, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from protonorm.analysis.reading import UNFIT, UNREADABLE, unread_reason
from protonorm.config.experiment import Experiment
from protonorm.core.progress import report
from protonorm.engines.processes.engine import cores
from protonorm.files import damaged
from protonorm.runs.layout import INFO
from protonorm.runs.reader import read_run
from protonorm.runs.run import Run
from protonorm.search.grid import Grid
from protonorm.search.side_by_side import Crew, Job, News
from protonorm.search.worker import attempt
from protonorm.session.running import refuse_renamed, tidy

State = Literal["absent", "begun", "done", "diverged", "damaged"]
Tell = Callable[[str], None]


class Standing(NamedTuple):
    """How a run stands."""

    state: State
    run: Run | None = None  # as far as it is asked for
    reason: str = ""  # why it stopped, or cannot be read

    @property
    def left(self) -> bool:
        """Tell whether there is something to run; what diverged would diverge again."""
        return self.state in ("absent", "begun")


def stand(experiment: Experiment, root: Path) -> Standing:
    """Read how a run stands; refuse one that is done with other names of classes or clients."""
    folder = root / experiment.key
    if not (folder / INFO).exists():
        return Standing("absent")
    try:
        run = read_run(folder, experiment.rounds)
    except UNREADABLE as error:
        return Standing("damaged", reason=unread_reason(error, folder))
    except UNFIT:
        return Standing("damaged", reason=str(damaged(folder, "its files do not fit together")))
    if len(run.rounds) >= experiment.rounds or run.stopped_early:
        refuse_renamed(experiment, folder)
        return Standing("done", run)
    return Standing("diverged", run, run.failure.reason) if run.failure else Standing("begun", run)


@dataclass(frozen=True)
class Sweep:
    """A grid, and the folder of its runs."""

    grid: Grid
    root: Path

    def standings(self) -> dict[str, Standing]:
        """Read how all runs stand, by key; of runs that differ in the number of rounds alone, the longest."""
        longest: dict[str, Experiment] = {}
        for _, _, experiment in self.grid.runs():
            if experiment.key not in longest or longest[experiment.key].rounds < experiment.rounds:
                longest[experiment.key] = experiment
        return {key: stand(experiment, self.root) for key, experiment in longest.items()}

    def jobs(self) -> list[Job]:
        """List the runs that are not done, each once."""
        standings, found = self.standings(), dict[str, Job]()
        for point, seed, experiment in self.grid.runs():
            here = standings[experiment.key]
            left = experiment.rounds - (len(here.run.rounds) if here.run else 0)
            if here.left and (experiment.key not in found or found[experiment.key].rounds < left):
                found[experiment.key] = Job(experiment.key, point.settings[seed], left)
        return list(found.values())

    def run(
        self,
        jobs: Sequence[Job],
        tell: Tell,
        *,
        count: int = 1,
        engine: str | None = None,
        workers: int | None = None,
        no_own_code: bool = False,
    ) -> None:
        """Do runs, `count` of them side by side; one that fails is told of and stops no other.

        The other runs are done: what a kill has left in their folders is removed.
        """
        for key, one in self.standings().items():
            if one.state == "done":
                tidy(self.root / key)
        follow = Follower(jobs, tell, count)
        if count > 1:
            for news in Crew(jobs, self.root, count, no_own_code=no_own_code).news():
                follow(news)
            return
        for job in jobs:
            problem = attempt(
                job.settings,
                self.root,
                engine=engine,
                workers=workers,
                watch=lambda round, key=job.key: follow(News(key, round.number)),
            )
            follow(News(job.key, ended=True, problem=problem))


class Follower:
    """Shows how far all runs are, and tells of what went wrong."""

    def __init__(self, jobs: Sequence[Job], tell: Tell, count: int) -> None:
        self._left = {job.key: job.rounds for job in jobs}
        self._whole, self._tell = sum(self._left.values()), tell
        self._title = f"{len(jobs)} runs{f', {count} side by side' if count > 1 else ''}, rounds"
        report(self._title, 0, self._whole)

    def __call__(self, news: News) -> None:
        """Take in what is heard of a run."""
        if news.warning:
            self._tell(f"{news.key}: {news.warning}")
        if news.round and self._left[news.key]:
            self._left[news.key] -= 1
        if news.ended:
            del self._left[news.key]  # all its rounds, or it ended early, or it failed
            if news.problem:
                self._tell(f"{news.key}: {news.problem}")
        report(self._title, self._whole - sum(self._left.values()), self._whole)


def how_many(
    left: int, jobs: int | None, engine: str | None, workers: int | None, devices: Sequence[str] = ("cpu",)
) -> int:
    """Choose how many runs go side by side: as many as there are cores, if there are runs enough to keep them busy.

    A run alone in a process wastes nothing on exchange and on waiting for the slowest client; but with fewer runs than
    cores, all cores on one run are faster. An engine or a number of workers is for runs one after the other.
    """
    if jobs is not None:
        if jobs > 1 and (engine or workers):
            raise ValueError("--jobs beside --engine or --workers is refused: a run beside others is one process.")
        return max(1, min(jobs, left))
    if engine or workers or any(device != "cpu" for device in devices):
        return 1
    return cores() if left >= cores() else 1
