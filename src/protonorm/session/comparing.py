"""`pn.compare` and the command `compare`: run several methods with the same settings. Finished runs need no torch."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protonorm.analysis.comparison import Unread
from protonorm.core.own_failures import runtime_failure
from protonorm.engines.choice import check_engine
from protonorm.errors import Diverged
from protonorm.runs.layout import INFO, is_packed, runs_root
from protonorm.runs.run import UNREADABLE, Run, read_whole, unread_reason
from protonorm.session.comparison import Comparison, code_version, digest, file_version, note, recall

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment
    from protonorm.config.methods import Compared
    from protonorm.core.algorithm import Algorithm
    from protonorm.session.progress import Watch
    from protonorm.session.result import Result
    from protonorm.trackers.tracker import Tracker

Follow = Callable[["Experiment"], AbstractContextManager["Watch"]]  # shows the rounds of an experiment while it runs

FILE = re.compile(r"\.(py|ya?ml)\b")  # matches file names, whose content also affects the result


def compare(
    *methods: str | Algorithm | type[Algorithm] | Mapping[str, str | Algorithm | type[Algorithm]],
    out: str | Path | None = None,
    engine: str | None = None,
    workers: int | None = None,
    solo: bool = False,
    tracker: str | Tracker | Watch | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run several methods and the `local` baseline with the same settings, and compare them.

    Runs that diverge or are damaged are reported as a warning and keep a row in the table.

    Args:
        *methods: Names, optionally with settings (`"protonorm:gamma=50"`, `"mine.py:Mine"`), or objects; a mapping
            such as `{"Ours": Mine(lam=2)}` names their rows. Words such as `"rounds=5"` and `"settings.yaml"` are read
            as settings.
        out: Folder of all runs; `PROTONORM_RUNS` or `./runs` by default.
        engine: Execution engine, as in `run`.
        workers: Number of worker processes, as in `run`.
        solo: Also run the solo control of each method, in which every client federates only with itself.
        tracker: Experiment tracker, as in `run`.
        progress: Whether to print a progress line; by default only in a notebook.
        **settings: Settings of an `Experiment`; `seeds=[0, 1, 2]` repeats every method with each seed.

    ```python
    import protonorm as pn

    small = {"dataset": {"name": "spiral", "points": 50}, "clients": 4, "rounds": 2}
    comparison = pn.compare("protonorm:gamma=10", pn.FedProto(lam=0.5), seeds=[0, 1], **small)
    print(comparison.frame()[["method", "rule", "accuracy"]])
    ```
    """
    from protonorm.session.progress import progress_line

    with progress_line(None, None, progress):
        plan = Plan.of(methods, settings, solo=solo, out=out)
        return plan.run(engine=engine, workers=workers, tracker=tracker, progress=progress)


class Asked(NamedTuple):
    """Run requested by a comparison."""

    key: str
    rounds: int


@dataclass(frozen=True)
class Plan:
    """Plan of a comparison: the runs of each method, one per seed."""

    methods: Sequence[Any]
    settings: Mapping[str, Any]
    solo: bool
    root: Path  # folder of all runs

    @classmethod
    def of(
        cls, methods: Sequence[Any], settings: Mapping[str, Any], *, solo: bool = False, out: str | Path | None = None
    ) -> Plan:
        """Parse the methods and settings; raise an error, before any run starts, if they cannot be compared."""
        plan = cls(methods, settings, solo, runs_root(out))
        assert plan.asked
        return plan

    @cached_property
    def compared(self) -> Compared:
        """Parsed methods and settings."""
        from protonorm.config.methods import read_comparison

        return read_comparison(self.methods, self.settings, solo=self.solo)

    @cached_property
    def known(self) -> dict[str, list[Asked]]:
        """Runs that the same arguments resolved to when all were finished; empty if not cached."""
        cached = recall(self.root, mark) if (mark := self._mark()) else {}
        with suppress(OSError):  # a data file no longer exists
            if cached and all(file_version(path) == version for path, version in cached["data"].items()):
                return {method: [Asked(*request) for request in asked] for method, asked in cached["asked"].items()}
        return {}

    @cached_property
    def asked(self) -> dict[str, list[Asked]]:
        """Requested runs of each method."""
        runs: Mapping[str, Sequence[Asked | Experiment]] = self.known or self.compared.experiments
        return {method: [Asked(each.key, each.rounds) for each in group] for method, group in runs.items()}

    @property
    def key(self) -> str:
        """Identifier of this comparison (10 characters); needs no finished run."""
        return digest(*(request.key for requests in self.asked.values() for request in requests))[:10]

    def run(
        self,
        *,
        engine: str | None = None,
        workers: int | None = None,
        tracker: str | Tracker | Watch | None = None,
        progress: bool | None = None,
        follow: Follow | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> Comparison:
        """Run what is missing, and read each record once; `notify` receives messages on diverged and damaged runs."""
        check_engine(engine, workers)  # before any run: an invalid engine is not a damaged run
        if self.known and not tracker and (finished := self._finished()):
            return Comparison(self, finished)
        from protonorm.session import running
        from protonorm.session.build import shared_data
        from protonorm.trackers.tracker import choose

        follower = choose(tracker or self.compared.tracker)
        start = partial(running.run, out=self.root, engine=engine, workers=workers, tracker=follower, progress=progress)

        def attempt(experiment: Experiment) -> Result:
            with follow(experiment) if follow else nullcontext() as watch:
                return start(experiment, watch=watch)

        with shared_data():
            outcomes = {
                method: [run_or_report(each, self.root, partial(attempt, each), notify) for each in experiments]
                for method, experiments in self.compared.experiments.items()
            }
        if all(isinstance(run, Run) and run.finished for runs in outcomes.values() for run in runs):
            self._remember()
        return Comparison(self, outcomes)

    def _finished(self) -> dict[str, list[Run | Unread]] | None:
        """Read the cached runs, each once; return None if a run is missing or unfinished."""
        runs: dict[str, list[Run | Unread]] = {method: [] for method in self.known}
        for method, (key, rounds) in ((method, request) for method, asked in self.known.items() for request in asked):
            run = _readable(self.root / key, rounds)
            if run is None or run.info.key != key or not run.finished:
                return None
            runs[method].append(run)
        return runs

    def _mark(self) -> str | None:
        """Return the cache key of these arguments; None for objects, user code and files, whose content also matters.

        The key changes with the package's files, the current folder and the data folder.
        """
        with suppress(TypeError, ValueError):
            arguments = json.dumps([self.methods, self.settings, self.solo], sort_keys=True)
            if not FILE.search(arguments):
                return digest("words", arguments, os.getcwd(), os.environ.get("PROTONORM_DATA", ""), code_version())
        return None

    def _remember(self) -> None:
        """Cache the runs of these arguments, if the arguments, the package and data files alone determine them."""
        mark, experiments = self._mark(), list(chain.from_iterable(self.compared.experiments.values()))
        given = filter(None, (getattr(experiment.dataset, "path", None) for experiment in experiments))
        paths = {str(Path(path).absolute()) for path in given}
        if mark is None or self.compared.tracker or any(experiment.device != "cpu" for experiment in experiments):
            return
        if all(map(os.path.isfile, paths)):  # a folder's modification time does not reveal changes of its content
            note(self.root, mark, {"asked": self.asked, "data": {path: file_version(path) for path in paths}})


def run_or_report(
    experiment: Experiment, root: Path, attempt: Callable[[], Result], notify: Callable[[str], None] | None
) -> Run | Unread:
    """Run an experiment by `attempt`; report a diverged or damaged run to `notify`, or as a warning."""
    notify = notify or (lambda sentence: warnings.warn(sentence, stacklevel=5))
    folder, rule, run = root / experiment.key, experiment.algorithm.headline, None
    # The settings of a started run were valid, so only its files can be damaged.
    started = os.path.lexists(folder / INFO) or is_packed(folder)
    try:
        run = attempt().run
    except Diverged as error:
        notify(str(error))
    except ValueError as error:
        if not started or runtime_failure(error):  # invalid settings, or an error in the user's own file
            raise
        notify(str(error))
        return Unread(rule, str(error))
    except OSError:
        if not started or _readable(folder):  # the cause is the disk or another process, not the record
            raise
    try:
        return read_whole(folder, experiment.rounds, run)
    except UNREADABLE as error:
        notify(unread_reason(error, folder))
        return Unread(rule, unread_reason(error, folder))


def _readable(folder: Path, rounds: int | None = None) -> Run | None:
    with suppress(*UNREADABLE):
        return read_whole(folder, rounds)
    return None
