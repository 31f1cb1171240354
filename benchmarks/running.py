"""Our own rounds, one at a time: a whole run with its engine, its states and its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import protonorm as pn
from protonorm.core import Task
from protonorm.federation.population import SimulatedPopulation
from protonorm.federation.rounds import begin, run_rounds
from protonorm.runs.run import Population
from protonorm.runs.writer import RunWriter
from protonorm.session.build import build, policy_of
from protonorm.session.running import info_of


class MeasuredRun:
    """A new run in a folder of its own, whose rounds are asked for one by one."""

    def __init__(
        self,
        settings: dict[str, Any],
        folder: Path,
        engine: Callable[..., Any],
        workers: int | None = None,
        make: Callable[[pn.Experiment], tuple[Task, SimulatedPopulation]] = build,
    ) -> None:
        experiment = pn.Experiment.of(settings)
        task, population = make(experiment)
        facts = population.facts()
        self.pictures = int(facts.train.sum())
        self._writer = RunWriter(folder, experiment.key).__enter__()
        self._writer.describe(info_of(experiment, task), Population(facts.train, facts.validation, facts.test))
        point = self._writer.resume() or begin(task, policy_of(experiment))
        self._engine = engine(task, population, self._writer.store, workers)
        self._rounds = run_rounds(task, self._engine, policy_of(experiment), point, self._writer)

    @property
    def assigned(self) -> list[list[int]]:
        """Return which clients are in which process."""
        return [list(part) for part in self._engine.assigned]

    def round(self) -> float:
        """Run a round; give its seconds as the record has them, without the commit."""
        return next(self._rounds).seconds["round"]

    def round_and_commit(self) -> float:
        """Run a round; give its seconds, with the commit."""
        start = time.perf_counter()
        next(self._rounds)
        return time.perf_counter() - start

    def commit(self) -> float:
        """Run a round; give the seconds of its commit alone."""
        start = time.perf_counter()
        round = next(self._rounds)
        return time.perf_counter() - start - round.seconds["round"]

    def close(self) -> None:
        """End the processes, and let go of the folder."""
        self._engine.close()
        self._writer.__exit__()
