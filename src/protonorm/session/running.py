"""Running an experiment: start, resume, or read the finished run."""

import warnings
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import torch

from protonorm.config.experiment import Experiment
from protonorm.core.randomness import cores, one_thread
from protonorm.core.task import Task
from protonorm.core.types import shown
from protonorm.engines import ENGINES
from protonorm.engines.choice import EngineChoice, check_engine, worth_processes
from protonorm.engines.handover import obstacle
from protonorm.errors import Diverged
from protonorm.federation.population import SimulatedPopulation
from protonorm.federation.rounds import begin, run_rounds
from protonorm.models.choose import Recipe, described, networks
from protonorm.models.frozen import FrozenNetwork
from protonorm.runs.layout import INFO, exists, runs_root
from protonorm.runs.provenance import provenance, versions
from protonorm.runs.run import Population, Run, first_rounds, read_run
from protonorm.runs.schema import FORMAT, ExperimentInfo, RunInfo, TrunkInfo, read_info, refuse_other_names
from protonorm.runs.states import MEGABYTE, stray_states
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
    """Run an experiment; resume it if it was started, and return the recorded result if it is finished.

    The results are the same on every engine. The run may be interrupted at any time (Ctrl-C); the same call resumes it.

    Args:
        experiment: The experiment; its run is stored in the folder `experiment.key` under `out`.
        out: Folder of all runs; `PROTONORM_RUNS` or `./runs` by default.
        engine: `serial` or `processes`. By default, one process per core where that is estimated to save time, and this
            process otherwise.
        workers: Number of worker processes.
        watch: Callback for each round that is run now.
        tracker: Experiment tracker, or its name (see `protonorm list trackers`); receives all rounds, including those
            recorded earlier.
        progress: Whether to print a progress line; by default only in a notebook.

    Raises:
        Diverged: If training produces non-finite numbers.
        TooFewReplies: If a round receives fewer replies than its quorum.

    ```python
    import protonorm as pn

    experiment = pn.Experiment(dataset={"name": "spiral", "points": 50}, clients=4, rounds=2)
    result = pn.run(experiment)
    print(result.accuracy("nearest-global"))  # (2,)
    ```
    """
    if not isinstance(experiment, Experiment):
        raise ValueError(f"experiment must be pn.Experiment(…) or pn.Experiment.of({{…}}), got {shown(experiment)}.")
    requested = check_engine(engine, workers)
    follower = choose(tracker)
    with progress_line(experiment, watch, progress) as notify:
        folder = runs_root(out) / experiment.key
        refuse_renamed(experiment, folder)
        record = finished_run(folder, experiment.rounds)
        if record is None:
            with one_thread():
                _run(experiment, folder, requested, workers, notify, follower)
            record = read_run(folder)
        else:
            tidy(record)
            if follower:
                with RunWriter(folder, experiment.key), tracked(follower, folder, experiment.rounds):
                    pass  # all rounds are recorded
    return Result(experiment, first_rounds(record, experiment.rounds))


def finished_run(folder: Path, rounds: int) -> Run | None:
    """Read a run that has at least `rounds` committed rounds or stopped early; None if there is none."""
    if not exists(folder / INFO):
        return None
    run = read_run(folder)
    return run if len(run.rounds) >= rounds or run.stopped_early else None


def refuse_renamed(experiment: Experiment, folder: Path) -> None:
    """Raise an error if a recorded run of the same samples has other class or client names."""
    if isinstance(getattr(type(experiment.dataset), "names", None), property) and exists(folder / INFO):
        refuse_other_names(folder, read_info(folder / INFO), *experiment.dataset.names)


def _run(
    experiment: Experiment,
    folder: Path,
    engine: EngineChoice | None,
    workers: int | None,
    watch: Watch,
    tracker: Tracker | None,
) -> None:
    """Run the remaining rounds and report each; record the reason of a failure."""
    task, population = build(experiment)
    asked = workers if experiment.deadline is None else workers or cores()  # in one process no client is late
    chosen = choose_engine(task, population, engine.name if engine else None, asked, cohort=experiment.cohort_size)
    settings = engine.settings if engine and engine.name == chosen else {}
    start = partial(ENGINES[chosen].load(), **settings)
    with RunWriter(folder, experiment.key, experiment.state_memory * MEGABYTE) as writer:
        writer.describe(info_of(experiment, task, population.client_names), _counts(population))
        policy = policy_of(experiment, population.client_names)
        point = writer.resume() or begin(task, policy)
        done = point.round
        writer.start(provenance(done, engine=chosen, device=experiment.device, threads=torch.get_num_threads()))
        with tracked(tracker, folder) as notify, closing(start(task, population, writer.store, workers)) as clients:
            try:
                for round in run_rounds(task, clients, policy, point, writer):
                    done = round.number
                    watch(round)
                    notify(round)
            except Diverged as error:
                writer.fail(done + 1, str(error))
                method = (plain := experiment.model_dump(mode="json"))["algorithm"]
                has = {"algorithm": method["name"], "lr": plain["lr"]}
                has |= {f"algorithm.{name}": method[name] for name in ("lam", "gamma") if name in method}
                raise Diverged(
                    f"{error} Round {done} is kept in {folder}. A smaller lr, λ or γ may help: "
                    f"this run has {', '.join(f'{name}={value}' for name, value in has.items())}."
                ) from None


def choose_engine(
    task: Task, population: SimulatedPopulation, requested: str | None, workers: int | None = None, *, cohort: int = 0
) -> str:
    """Return the name of the engine: the requested engine, if the simulation can leave this process.

    Without a request, clients run in processes where these save time. `cohort` is the number of clients per round; all
    by default.
    """
    count, cohort = workers or cores(), cohort or len(population)
    parallel = count > 1 and len(population) > 1 and task.rounds > 0
    if parallel and workers is None:
        parallel = worth_processes(population, task.rounds, cohort, count)
    name = requested or ("processes" if parallel else "serial")
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
        input=task.input,
        versions=versions(),
        early_stopping=experiment.early_stopping,
        last_round=experiment.algorithm.last_round,
        client_names=None if client_names is None else list(client_names),
        trunks=_trunks(experiment, task) or None,
    )


def _trunks(experiment: Experiment, task: Task) -> list[TrunkInfo]:
    """Describe the different frozen trunks of all networks."""
    shared = task.shared_network.trunk if isinstance(task.shared_network, Recipe) else None
    declared = {trunk.name: trunk for trunk in (*task.trunks, *([shared] if shared else []))}
    loaded = {}
    for item in (*networks(experiment.models), experiment.auxiliary):
        if (frozen := FrozenNetwork.of(item)) and (trunk := declared.get(frozen.trunk_name)):
            weights = frozen.weights()
            loaded[trunk] = TrunkInfo(**trunk._asdict(), weights=weights.sha256, licence=weights.licence)
    return list(loaded.values())


def tidy(record: Run | Path) -> None:
    """Remove files that an interruption after the last round of a finished run has left.

    Errors are ignored, as when another process is writing or the folder is read-only: the record may still be read.
    """
    with suppress(ValueError, OSError):
        run = record if isinstance(record, Run) else read_run(record)
        if run.rounds and stray_states(run):
            with RunWriter(run.folder, run.info.key) as writer:
                writer.tidy()


def _counts(population: SimulatedPopulation) -> Population:
    facts = population.facts()
    return Population(facts.train, facts.validation, facts.test)
