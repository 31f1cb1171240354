"""A run from start to end: begin it, resume it, or find it done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from protonorm.core import one_thread
from protonorm.engines import ENGINES
from protonorm.engines.handover import obstacle
from protonorm.engines.processes import cores
from protonorm.errors import Diverged
from protonorm.evaluation import majority
from protonorm.experiment import Experiment
from protonorm.federation import Engine, Round, begin, rounds
from protonorm.history import read_run, runs_root
from protonorm.models.choose import described, networks
from protonorm.record import Checkpoint, Record
from protonorm.registry import find
from protonorm.result import Result
from protonorm.setup import Setup
from protonorm.trackers.tracker import Tracker, choose, tracked

Watch = Callable[[Round], None]  # told of every round as it is committed


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    engine: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    tracker: str | Tracker | Watch | None = None,
) -> Result:
    """Run an experiment in its folder under `out`; resume it if it was begun, do nothing if it is done.

    Clients live in one process a core unless `engine` says otherwise; the numbers are the same on every engine.
    `watch` is told of the rounds that are done now; `tracker`, of which `protonorm list trackers` has those by name, is
    told of all rounds from the first on, of a run that is done too.
    """
    follower = choose(tracker)
    folder = runs_root(Path(out) if out else None) / experiment.key
    chosen = choose_engine(experiment, engine)
    if not is_finished(folder):
        with one_thread():
            _run(experiment, folder, chosen, workers, watch or (lambda _: None), follower)
    elif follower:
        with Record(folder, experiment.key, experiment.rounds), tracked(follower, folder):
            pass  # all rounds are recorded
    return Result(experiment, read_run(folder))


def choose_engine(experiment: Experiment, wanted: str | None) -> str:
    """Name the engine to use: the one wanted, if the experiment can leave this process."""
    name = wanted or ("processes" if cores() > 1 and experiment.clients > 1 else "serial")
    find(ENGINES, name, "engine")
    if name != "serial" and (reason := obstacle(experiment)):
        warnings.warn(f"All clients run in this process, one after the other: {reason}.", stacklevel=3)
        return "serial"
    return name


def is_finished(folder: Path) -> bool:
    """Tell whether all rounds of a run are committed."""
    return (folder / "experiment.json").exists() and read_run(folder).finished


def _run(
    experiment: Experiment, folder: Path, engine: str, workers: int | None, watch: Watch, follower: Tracker | None
) -> None:
    start = ENGINES[engine].load()
    setup = Setup(experiment)
    setup.rehearse()
    with Record(folder, experiment.key, experiment.rounds) as record:
        record.describe(about(setup))
        point = record.resume() or begin(setup)
        with tracked(follower, folder) as tell, closing(start(setup, record.states, workers)) as clients:
            _go_on(setup, clients, record, point, (watch, tell))


def _go_on(setup: Setup, clients: Engine, record: Record, point: Checkpoint, watches: Sequence[Watch]) -> None:
    """Do the rounds after a checkpoint and tell of each; note why, if they end too soon."""
    done = point.round
    try:
        for finished in rounds(setup, clients, record, point):
            done = finished.number
            for watch in watches:
                watch(finished)
    except Diverged as error:
        record.fail(done + 1, str(error))
        raise Diverged(
            f"{error} Round {done} is kept in {record.folder}. A smaller lr, λ or γ may help: "
            f"this run has {_settings(setup.experiment)}."
        ) from None


def about(setup: Setup) -> dict[str, Any]:
    """Describe a run before its first round: settings, networks, who holds what, and the majority line."""
    experiment = setup.experiment
    train, test = setup.class_counts
    choice = described(networks(experiment.models))
    return {
        "key": experiment.key,
        "experiment": experiment.model_dump(mode="json"),
        "rules": list(experiment.algorithm.rules),
        "headline": experiment.algorithm.headline,
        "networks": [choice[id % len(choice)] for id in range(experiment.clients)],
        "classes": list(setup.dataset.classes),
        "input": setup.dataset.form,
        "counts": {"train": train.tolist(), "test": test.tolist()},
        "majority": majority(train, test),
    }


def _settings(experiment: Experiment) -> str:
    plain = experiment.model_dump(mode="json")
    method = plain["algorithm"]
    shown = {"algorithm": method["name"], "lr": plain["lr"]}
    shown |= {f"algorithm.{name}": method[name] for name in ("lam", "gamma") if name in method}
    return ", ".join(f"{name}={value}" for name, value in shown.items())
