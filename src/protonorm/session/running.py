"""A run from start to end: begin it, resume it, or find it done."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import torch

from protonorm.config.experiment import Experiment
from protonorm.core.randomness import one_thread
from protonorm.core.task import Task
from protonorm.engines import ENGINES
from protonorm.engines.choice import EngineChoice, read_engine
from protonorm.engines.processes.engine import cores
from protonorm.engines.processes.handover import obstacle
from protonorm.errors import Diverged
from protonorm.federation.population import SimulatedPopulation
from protonorm.federation.rounds import begin, run_rounds
from protonorm.models.choose import described, networks
from protonorm.runs.layout import INFO, runs_root
from protonorm.runs.provenance import provenance, versions
from protonorm.runs.reader import read_run
from protonorm.runs.run import Population
from protonorm.runs.schema import FORMAT, ExperimentInfo, InputInfo, RunInfo
from protonorm.runs.states import stray_states
from protonorm.runs.writer import RunWriter
from protonorm.session.build import build, policy_of
from protonorm.session.progress import Watch, progress_line
from protonorm.session.result import Result
from protonorm.trackers.tracker import Tracker, choose, tracked


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    engine: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    tracker: str | Tracker | Watch | None = None,
    progress: bool | None = None,
) -> Result:
    """Run an experiment in its folder under `out`; resume it if it was begun, do nothing if it is done.

    `out` is the folder of all runs, `PROTONORM_RUNS` or `./runs` if none is given; the run's own folder has the name
    `experiment.key`. `engine` is `serial` or `processes`, `workers` the number of processes.
    Clients live in one process for each core unless `engine` says otherwise; the numbers are the same on every engine.
    `watch` is told of the rounds that are done now; `tracker`, of which `protonorm list trackers` has those by name, is
    told of all rounds from the first on, of a run that is done too. `progress` says whether a line of text tells how
    far the run is; if it is not given, it does so in a notebook. Training that leaves the finite numbers raises
    `Diverged`, too few replies `TooFewReplies`; Ctrl-C may be pressed at any time, and the same call goes on.

    ```python
    import protonorm as pn

    experiment = pn.Experiment(dataset={"name": "spiral", "points": 50}, clients=4, rounds=2)
    result = pn.run(experiment)
    print(result.accuracy("global"))  # (2,)
    ```
    """
    follower = choose(tracker)
    wanted = None if engine is None else read_engine(engine)
    with progress_line(experiment, watch, progress) as told:
        folder = runs_root(Path(out) if out else None) / experiment.key
        if not is_finished(folder, experiment.rounds):
            with one_thread():
                _run(experiment, folder, wanted, workers, told, follower)
        elif follower:
            with RunWriter(folder, experiment.key), tracked(follower, folder):
                pass  # all rounds are recorded
        else:
            _tidy(experiment, folder)
    return Result(experiment, read_run(folder, experiment.rounds))


def is_finished(folder: Path, rounds: int) -> bool:
    """Tell whether so many rounds of a run are committed, or it has ended early."""
    if not (folder / INFO).exists():
        return False
    found = read_run(folder)
    return len(found.rounds) >= rounds or found.stopped_early


def _run(
    experiment: Experiment,
    folder: Path,
    engine: EngineChoice | None,
    workers: int | None,
    watch: Watch,
    tracker: Tracker | None,
) -> None:
    """Do the rounds that are left and tell of each; note why, if they end too soon."""
    task, population = build(experiment)
    chosen = choose_engine(task, population, engine.name if engine else None)
    settings = engine.settings if engine and engine.name == chosen else {}
    start = partial(ENGINES[chosen].load(), **settings)
    with RunWriter(folder, experiment.key) as writer:
        writer.describe(info_of(experiment, task, population.client_names), _counts(population))
        policy = policy_of(experiment, population.client_names)
        point = writer.resume() or begin(task, policy)
        done = point.round
        writer.start(provenance(done, engine=chosen, device=experiment.device, threads=torch.get_num_threads()))
        with tracked(tracker, folder) as tell, closing(start(task, population, writer.store, workers)) as clients:
            try:
                for round in run_rounds(task, clients, policy, point, writer):
                    done = round.number
                    watch(round)
                    tell(round)
            except Diverged as error:
                writer.fail(done + 1, str(error))
                raise Diverged(
                    f"{error} Round {done} is kept in {folder}. A smaller lr, λ or γ may help: "
                    f"this run has {_settings(experiment)}."
                ) from None


def choose_engine(task: Task, population: SimulatedPopulation, wanted: str | None) -> str:
    """Name the engine to use: the one wanted, if the simulation can leave this process."""
    name = wanted or ("processes" if cores() > 1 and len(population) > 1 and task.rounds else "serial")
    if name != "serial" and (reason := obstacle(task, population)):
        warnings.warn(f"All clients run in this process, one after the other: {reason}.", stacklevel=4)
        return "serial"
    return name


def info_of(experiment: Experiment, task: Task, client_names: Sequence[str] | None = None) -> RunInfo:
    """Describe a run before its first round."""
    assert task.input is not None
    return RunInfo(
        format=FORMAT,
        key=experiment.key,
        experiment=ExperimentInfo.model_validate(experiment.model_dump(mode="json")),
        changed=experiment.changed,
        rules=list(task.algorithm.rules),
        headline=task.algorithm.headline,
        networks=[described(item) for item in networks(experiment.models)],
        classes=list(task.classes),
        input=InputInfo(**task.input.describe()),
        versions=versions(),
        early_stopping=experiment.early_stopping,
        client_names=None if client_names is None else list(client_names),
    )


def _tidy(experiment: Experiment, folder: Path) -> None:
    """Remove what a kill after the last round has left, unless another process is at work here."""
    run = read_run(folder)
    if run.rounds and stray_states(run):
        with suppress(BlockingIOError), RunWriter(folder, experiment.key) as writer:
            writer.tidy()


def _counts(population: SimulatedPopulation) -> Population:
    facts = population.facts()
    return Population(facts.train, facts.validation, facts.test)


def _settings(experiment: Experiment) -> str:
    plain = experiment.model_dump(mode="json")
    method = plain["algorithm"]
    shown = {"algorithm": method["name"], "lr": plain["lr"]}
    shown |= {f"algorithm.{name}": method[name] for name in ("lam", "gamma") if name in method}
    return ", ".join(f"{name}={value}" for name, value in shown.items())
