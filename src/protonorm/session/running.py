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
from protonorm.core.types import shown
from protonorm.data.dataset import Dataset
from protonorm.data.own.files import OwnFiles
from protonorm.engines import ENGINES
from protonorm.engines.choice import EngineChoice, check_workers, read_engine
from protonorm.engines.processes.engine import cores
from protonorm.engines.processes.handover import obstacle
from protonorm.errors import Diverged
from protonorm.federation.population import SimulatedPopulation
from protonorm.federation.rounds import begin, run_rounds
from protonorm.models.choose import described, networks
from protonorm.runs.info import read_info, refuse_other_names
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
    if not isinstance(experiment, Experiment):
        raise ValueError(
            f"{shown(experiment)} is not an experiment: expected pn.Experiment(…), or pn.Experiment.of({{…}})."
        )
    wanted = check_engine(engine, workers)
    follower = choose(tracker)
    with progress_line(experiment, watch, progress) as told:
        folder = runs_root(Path(out) if out else None) / experiment.key
        refuse_renamed(experiment, folder)
        if not is_finished(folder, experiment.rounds):
            with one_thread():
                _run(experiment, folder, wanted, workers, told, follower)
        else:
            tidy(folder)
            if follower:
                with RunWriter(folder, experiment.key), tracked(follower, folder, experiment.rounds):
                    pass  # all rounds are recorded
    return Result(experiment, read_run(folder, experiment.rounds))


def check_engine(engine: str | None, workers: int | None) -> EngineChoice | None:
    """Read which engine is wanted, and refuse a number of processes that is none."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers={shown(workers)} is refused: expected at least one process.")
    wanted = None if engine is None else read_engine(engine)
    if wanted:
        check_workers(wanted, workers)
    return wanted


def is_finished(folder: Path, rounds: int) -> bool:
    """Tell whether so many rounds of a run are committed, or it has ended early."""
    if not (folder / INFO).exists():
        return False
    found = read_run(folder)
    return len(found.rounds) >= rounds or found.stopped_early


def refuse_renamed(experiment: Experiment, folder: Path) -> None:
    """Refuse a run of the same samples whose classes or clients had other names; data of the package never do."""
    if isinstance(experiment.dataset, Dataset | OwnFiles) and (folder / INFO).exists():
        refuse_other_names(folder, read_info(folder / INFO), *experiment.dataset.names)


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
    chosen = choose_engine(task, population, engine.name if engine else None, workers)
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


def choose_engine(task: Task, population: SimulatedPopulation, wanted: str | None, workers: int | None = None) -> str:
    """Name the engine to use: the one wanted, if the simulation can leave this process."""
    several = (workers or cores()) > 1 and len(population) > 1 and task.rounds
    name = wanted or ("processes" if several else "serial")
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


def tidy(folder: Path) -> None:
    """Remove what a kill after the last round of a finished run has left.

    Where another process is at work, or something is damaged or not to be written, all stays: a record may be shown.
    """
    with suppress(ValueError, OSError):
        run = read_run(folder)
        if run.rounds and stray_states(run):
            with RunWriter(folder, run.info.key) as writer:
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
