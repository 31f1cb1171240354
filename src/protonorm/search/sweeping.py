"""Execution of the unfinished runs of a grid, sequentially or in parallel worker processes.

`python -m protonorm.search.sweeping` is such a worker: it executes runs sequentially and exchanges frames with its
parent. It exits as soon as its parent does, and an interrupted run is resumed at the next start.
"""

import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from protonorm.config.experiment import Experiment
from protonorm.core.frames import write_frame
from protonorm.core.own_code import without_own_code
from protonorm.core.own_failures import runtime_failure
from protonorm.core.progress import report
from protonorm.core.randomness import cores
from protonorm.engines.processes import Pool
from protonorm.engines.worker import Frames, serve_parent
from protonorm.errors import Failed
from protonorm.federation.rounds import Round
from protonorm.files import damaged
from protonorm.runs.layout import INFO, exists
from protonorm.runs.run import UNFIT, UNREADABLE, Run, read_run, unread_reason
from protonorm.search.grid import Grid, Point
from protonorm.session.running import refuse_renamed, run, tidy

State = Literal["absent", "begun", "done", "diverged", "damaged"]
Tell = Callable[[str], None]


class Standing(NamedTuple):
    """State of a run on disk."""

    state: State
    run: Run | None = None  # limited to the requested rounds
    reason: str = ""  # why it failed or cannot be read


def stand(experiment: Experiment, root: Path) -> Standing:
    """Read the state of a run; raise a ValueError if it is done with other names of classes or clients."""
    folder = root / experiment.key
    if not exists(folder / INFO):
        return Standing("absent")
    try:
        record = read_run(folder, experiment.rounds)
    except UNREADABLE as error:
        return Standing("damaged", reason=unread_reason(error, folder))
    except UNFIT:
        return Standing("damaged", reason=str(damaged(folder, "its files do not fit together")))
    if len(record.rounds) >= experiment.rounds or record.stopped_early:
        refuse_renamed(experiment, folder)
        return Standing("done", record)
    return Standing("diverged", record, record.failure.reason) if record.failure else Standing("begun", record)


class Job(NamedTuple):
    """Unfinished run."""

    key: str
    settings: dict[str, Any]
    rounds: int  # left to run


class News(NamedTuple):
    """Event of a run: a finished round, a warning, or its end."""

    key: str
    round: int = 0
    warning: str = ""
    ended: bool = False
    problem: str = ""  # why it failed


@dataclass(frozen=True)
class Sweep:
    """Grid and the root folder of its runs."""

    grid: Grid
    root: Path

    def standings(self) -> dict[str, Standing]:
        """Read the states of all runs by key; of runs that differ only in the number of rounds, the longest."""
        return {key: stand(experiment, self.root) for key, (_, _, experiment) in self._longest().items()}

    def jobs(self) -> list[Job]:
        """List the unfinished runs without duplicates."""
        return [
            Job(key, point.settings[seed], experiment.rounds - (len(standing.run.rounds) if standing.run else 0))
            for key, (point, seed, experiment) in self._longest().items()
            if (standing := stand(experiment, self.root)).state in ("absent", "begun")  # others would fail again
        ]

    def run(
        self,
        jobs: Sequence[Job],
        notify: Tell,
        *,
        count: int = 1,
        engine: str | None = None,
        workers: int | None = None,
        no_own_code: bool = False,
    ) -> None:
        """Execute runs, `count` in parallel; a failed run is reported to `notify` and does not stop the others.

        Leftovers of killed processes are removed from the folders of finished runs.
        """
        for key, standing in self.standings().items():
            if standing.state == "done":
                tidy(self.root / key)
        follow = _Follower(jobs, notify, count)
        if count > 1:
            for news in Crew(jobs, self.root, count, no_own_code=no_own_code).news():
                follow(news)
            return
        start = partial(attempt, out=self.root, engine=engine, workers=workers)
        for job in jobs:
            problem = start(job.settings, watch=lambda round, key=job.key: follow(News(key, round.number)))
            follow(News(job.key, ended=True, problem=problem))

    def _longest(self) -> dict[str, tuple[Point, int, Experiment]]:
        """Map each key to its run with the most rounds."""
        longest: dict[str, tuple[Point, int, Experiment]] = {}
        for entry in self.grid.runs():
            longest[entry[2].key] = max(longest.get(entry[2].key, entry), entry, key=lambda other: other[2].rounds)
        return longest


class _Follower:
    """Progress display of all runs, which also reports warnings and failures.

    Nothing is reported before the first round: the start of workers is no part of the estimated time left.
    """

    def __init__(self, jobs: Sequence[Job], notify: Tell, count: int) -> None:
        self._left = {job.key: job.rounds for job in jobs}
        self._total, self._notify = sum(self._left.values()), notify
        self._title = f"{len(jobs)} runs{f', {count} side by side' if count > 1 else ''}, rounds"

    def __call__(self, news: News) -> None:
        """Process an event of a run."""
        for text in filter(None, (news.warning, news.problem)):
            self._notify(f"{news.key}: {text}")
        if news.round and self._left[news.key]:
            self._left[news.key] -= 1
        if news.ended:
            del self._left[news.key]  # it finished, ended early, or failed
        if done := self._total - sum(self._left.values()):
            report(self._title, done, self._total)


def how_many(
    left: int, jobs: int | None, engine: str | None, workers: int | None, devices: Sequence[str] = ("cpu",)
) -> int:
    """Return the number of runs to execute in parallel: one per core, if there are at least as many runs as cores.

    A run in a single process has no overhead for communication and stragglers; but with fewer runs than cores, it is
    faster to use all cores for one run. An explicit engine or number of workers implies sequential runs.
    """
    if jobs is not None:
        if jobs > 1 and (engine or workers):
            raise ValueError("--jobs beside --engine or --workers is refused: a run beside others is one process.")
        return max(1, min(jobs, left))
    if engine or workers or any(device != "cpu" for device in devices):
        return 1
    return cores() if left >= cores() else 1


class Crew:
    """Pool of worker processes that share a list of runs."""

    def __init__(self, jobs: Sequence[Job], out: Path, count: int, *, no_own_code: bool = False) -> None:
        request = {"out": str(out.resolve()), "path": sys.path, "argv": sys.argv, "no_own_code": no_own_code}
        self._jobs = jobs
        self._pool = Pool(min(count, len(jobs)), lambda _: request, "protonorm.search.sweeping")

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.processes

    def news(self) -> Iterator[News]:
        """Execute all runs and yield their events; closing the iterator ends the workers at once."""
        waiting, busy, idle = deque(self._jobs), dict[int, Job](), deque(range(len(self._pool)))
        try:
            while waiting or busy:
                while waiting and idle:
                    number = idle.popleft()
                    busy[number] = waiting.popleft()
                    self._pool.send(number, {"settings": busy[number].settings})
                number, _, header, _, gone = self._pool.receive()
                if number not in busy:
                    continue  # an idle worker has exited, and no run is left for it
                key = busy[number].key
                if "gone" in header:
                    reason = self._pool.replace(number, gone)
                    header = {"ended": f"{reason}; the same command goes on from its last round"}
                if "ended" in header:
                    del busy[number]
                    idle.append(number)
                    yield News(key, ended=True, problem=str(header["ended"]))
                else:
                    yield News(key, int(header.get("round", 0)), str(header.get("warning", "")))
        finally:
            self._pool.close(gently=False)


def attempt(settings: dict[str, Any], **options: Any) -> str:
    """Run an experiment; return the reason of a failure, or an empty string."""
    try:
        run(Experiment.of(settings), **options)
    except BrokenPipeError:
        raise  # the parent has exited
    except (Failed, ValueError, OSError) as error:  # their messages are meant for users
        return runtime_failure(error) or str(error) or type(error).__name__
    except Exception as error:  # the other runs continue
        return runtime_failure(error) or f"it failed unexpectedly:\n{traceback.format_exc()}"
    return ""


def serve(frames: Frames, answers: IO[bytes]) -> None:
    """Execute requested runs sequentially in this process; send their rounds, warnings and ends."""

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        write_frame(answers, {"warning": str(message)})

    def watch(round: Round) -> None:
        write_frame(answers, {"round": round.number})

    request, _ = frames.get()
    sys.path[:], sys.argv[:] = request["path"], request["argv"]  # the parent's, for provenance
    write_frame(answers, {"ready": True})
    with warnings.catch_warnings(), without_own_code(request["no_own_code"]):
        warnings.showwarning = warn
        while True:
            job, _ = frames.get()
            problem = attempt(job["settings"], out=Path(request["out"]), engine="serial", watch=watch)
            write_frame(answers, {"ended": problem})


if __name__ == "__main__":
    serve_parent(serve)
