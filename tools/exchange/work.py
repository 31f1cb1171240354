"""The runs of a folder: what is done, what is chosen by it, and what is to be done."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from experiments.reproduction.findings import Description, described_data, recorded_keys
from numpy.typing import NDArray
from tools.exchange.jobs import ABLATION, CENTRE, MAP, METHODS, SEEDS, TABLE, WHOLE, Job, Place, tuning

from protonorm import Diverged, run
from protonorm.runs.choice import choose_round
from protonorm.runs.layout import INFO, exists
from protonorm.runs.run import Run, read_run
from protonorm.runs.schema import RoundRecord


class Pick(NamedTuple):
    """What was chosen for a method."""

    lr: float
    fields: Mapping[str, Any]
    rule: str


class Work:
    """The runs of a folder."""

    def __init__(self, runs: Path, data: Path, workers: int = 1) -> None:
        self.runs, self.data, self.workers = runs, data, workers
        self._finished: dict[str, Run] = {}  # by key

    def done(self, job: Job) -> Run | None:
        """Read a job's run, if it is finished or diverged; where the pictures are not, the record of who had them."""
        experiment = job.experiment(self.data)
        if (self.data / f"{job.place.dataset}.npz").exists():
            keys = [experiment.key]
        else:
            keys = recorded_keys(experiment, self.runs, self._known)
        if len(keys) != 1 or not exists(self.runs / keys[0] / INFO):
            return None
        if keys[0] not in self._finished:
            finished = read_run(self.runs / keys[0])
            if len(finished.rounds) < experiment.rounds and not finished.failure:
                return None
            self._finished[keys[0]] = finished
        return self._finished[keys[0]]

    @cached_property
    def _known(self) -> list[Description]:
        return described_data(self.runs)

    def chosen(self, method: str) -> Pick | None:
        """Choose learning rate, settings and rule by validation accuracy; None while runs are missing."""
        choices: list[tuple[float, Pick]] = []
        for job in tuning(method):
            run = self.done(job)
            if run is None:
                return None
            if not run.failure:
                choices += [(accuracy(run, rule)[0], Pick(job.lr, job.fields, rule)) for rule in run.info.rules]
        if not choices:
            raise ValueError(f"Every setting of {method} diverged.")
        return max(choices, key=lambda pair: pair[0])[1]

    def pick(self, method: str) -> Pick:
        """Return what was chosen for a method; raise if it is too early."""
        if pick := self.chosen(method):
            return pick
        raise SystemExit(f"Settings of {method} are not chosen yet: expected `tune` to be done first.")

    def jobs(self, stage: str) -> Iterator[Job]:
        """List the jobs of a stage, the most telling first."""
        if stage == "tune":
            for method in dict.fromkeys((*TABLE, *MAP)):
                yield from tuning(method)
        if stage == "table":
            for seed, method in itertools.product(SEEDS, TABLE):
                yield self.job(method, CENTRE, seed)
        if stage == "ablation":
            for seed, fields in itertools.product(SEEDS, ABLATION.values()):
                yield Job("Duet", CENTRE, seed, self.pick("Duet").lr, fields)
        if stage == "map":
            for place, method in itertools.product(WHOLE, MAP):
                yield self.job(method, place, SEEDS[0])

    def job(self, method: str, place: Place, seed: int) -> Job:
        """Make a job with what was chosen for its method."""
        pick = self.pick(method)
        return Job(method, place, seed, pick.lr, pick.fields)

    def run(self, stage: str, methods: Collection[str] = tuple(METHODS)) -> None:
        """Run what is missing of some methods in a stage, but for what another process is at."""
        engine = "serial" if self.workers == 1 else "processes"
        for job in self.jobs(stage):
            if job.method not in methods or self.done(job) is not None:
                continue
            start, experiment = time.monotonic(), job.experiment(self.data)
            try:
                finished = run(experiment, out=self.runs, engine=engine, workers=self.workers, progress=False).run
            except BlockingIOError:
                continue
            except Diverged as error:
                print(f"{job.method}, {job.place}, seed {job.seed}, lr {job.lr:g}: {error}")
                continue
            accuracies = ", ".join(f"{rule} {accuracy(finished, rule)[1]:.1f}" for rule in finished.info.rules)
            extra = " ".join(f"{name}={value}" for name, value in job.fields.items())
            print(f"{job.method} {extra}, {job.place}, seed {job.seed}, lr {job.lr:g}: {accuracies}"
                  f" ({time.monotonic() - start:.0f} s)")  # fmt: skip


def accuracy(result: Run, rule: str) -> tuple[float, float]:
    """Return validation and test accuracy, in per cent, in the round with the best validation accuracy under a rule."""
    record = best_round(result, rule)
    validated, tested = record.validation[rule], record.rules[rule]
    if validated is None or tested is None:
        raise ValueError(f"{result.folder} has no accuracy under {rule}.")
    return 100 * validated.mean, 100 * tested.pooled


def by_client(result: Run, rule: str) -> NDArray[np.float64]:
    """Return the clients' test accuracies (M,) in that round; nan for who has nothing to test on."""
    return result.by_client(best_round(result, rule), rule)


def best_round(result: Run, rule: str) -> RoundRecord:
    """Find the round with the best validation accuracy under a rule."""
    choice = choose_round(result.rounds, rule)
    if choice is None:
        raise ValueError(f"{result.folder} has no round to report under {rule}.")
    return choice.record
