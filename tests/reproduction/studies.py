"""Small tables, and records of runs that never were, for tests of the reproduction."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from experiments.reproduction.cells import Cell, Column, Printed, Study, select_cells
from experiments.reproduction.findings import Findings, expected_outcomes, read_outcomes
from experiments.reproduction.profiles import PROFILES, PROTOCOLS
from experiments.reproduction.running import Reproduction

from protonorm.config.experiment import Experiment
from protonorm.core.types import InputSpec
from protonorm.runs.provenance import versions
from protonorm.runs.run import Population
from protonorm.runs.schema import FORMAT, Accuracy, ExperimentInfo, RunInfo, Traffic
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import RoundOutcome, RunWriter

TINY = {
    "dataset": {"name": "spiral", "points": 20},
    "partition": "iid",
    "clients": 2,
    "rounds": 1,
    "batch_size": 8,
    "models": "mlp",
}
COLUMNS = (Column("one", "Group"), Column("two", "Group"))
SAMPLES = 10_000  # test and validation samples of each fake client, so that accuracies are exact to 0.01 per cent


def small_study(**more: Any) -> Study:
    """Three methods on two small settings; nothing here takes a second."""
    cells = [
        Cell(row, column.place, TINY | {"algorithm": row.lower(), "lr": lr})
        for row in ("ProtoNorm", "FedProto", "Local")
        for column, lr in zip(COLUMNS, (0.01, 0.02), strict=True)
    ]
    usual: dict[str, Any] = {
        "name": "small",
        "title": "A small table",
        "cells": cells,
        "columns": COLUMNS,
        "rows": ("ProtoNorm", "FedProto"),
        "beside": ("Local",),
        "paper": {("ProtoNorm", "Group: one"): Printed(47.41, 0.4), ("FedProto", "Group: two"): Printed(None)},
    }
    return Study(**usual | more)


def task(tmp_path, study=None, profile="paper", seeds=(0,), only=(), command="", protocol=None) -> Reproduction:
    """Prepare to reproduce the small table in a folder of its own."""
    return Reproduction(
        select_cells([study or small_study()], only),
        PROFILES[profile],
        PROTOCOLS[protocol or PROFILES[profile].protocol],
        tmp_path / "runs",
        tmp_path / "out",
        command or "protonorm reproduce small",
        list(seeds),
    )


class Fake(NamedTuple):
    """A run that never was: a share of right answers, the same for every client and under every rule."""

    accuracy: float | tuple[float, ...]  # in every round, or in each
    validated: tuple[float, ...] | None = None  # on validation samples; as `accuracy` if not given, () for none
    done: int | None = None  # rounds; all if not given
    diverged: int | None = None  # in this round


def fake_findings(
    root: Path, study: Study, given: dict[tuple[str, str], list[Any]], profile="paper", protocol=None
) -> Findings:
    """Write a record for each cell and seed that has an accuracy or a Fake, and none where it is None."""
    rules = PROTOCOLS[protocol or PROFILES[profile].protocol]
    seeds = range(max(map(len, given.values()), default=1))
    outcomes = [
        one
        for one in expected_outcomes(study, PROFILES[profile], rules, seeds)
        if one.seed < max(1, len(given.get(one.cell.place, ())))
    ]
    for one in outcomes:
        held = given.get(one.cell.place, [None])[one.seed]
        if held is not None:
            write_record(root, one.experiment, held if isinstance(held, Fake) else Fake(held))
    return Findings(study, PROFILES[profile], rules, read_outcomes(outcomes, root, {}), "protonorm reproduce small")


def write_record(root: Path, experiment: Experiment, fake: Fake) -> Path:
    """Write the record of a run that never was."""
    clients, done = experiment.clients, experiment.rounds if fake.done is None else fake.done
    with RunWriter(root / experiment.key, experiment.key) as writer:
        test = np.full((clients, 2), SAMPLES // 2)
        held_out = test if experiment.validation else np.zeros_like(test)
        writer.describe(fake_info(experiment), Population(np.ones_like(test), held_out, test))
        for number in range(1, done + 1):
            writer.commit(Checkpoint(number, {}, {}, [number] * clients), fake_round(number, experiment, fake))
        if fake.diverged:
            writer.fail(fake.diverged, "The loss is not finite.")
    return root / experiment.key


def fake_info(experiment: Experiment) -> RunInfo:
    """Describe an experiment as the record of a run does."""
    return RunInfo(
        format=FORMAT,
        key=experiment.key,
        experiment=ExperimentInfo.model_validate(experiment.model_dump(mode="json")),
        changed={},
        rules=list(experiment.algorithm.rules),
        headline=experiment.algorithm.headline,
        networks=["mlp"],
        classes=["a", "b"],
        input=InputSpec(shape=[2], type="float32"),
        versions=versions(),
    )


def fake_round(number: int, experiment: Experiment, fake: Fake) -> RoundOutcome:
    """Fake a round in which every client has the same accuracy."""
    clients, rules = experiment.clients, experiment.algorithm.rules
    arrays, records = {}, {"test": {}, "validation": {}}
    shares = {"test": fake.accuracy}
    if experiment.validation and fake.validated != ():
        shares["validation"] = fake.accuracy if fake.validated is None else fake.validated
    for part, given in shares.items():
        right = round((given[number - 1] if isinstance(given, tuple) else given) * SAMPLES)
        share = right / SAMPLES
        arrays |= {f"{part}.support.clients": np.full(clients, SAMPLES)}
        arrays |= {f"{part}.support.classes": np.full(2, clients * SAMPLES // 2)}
        for rule in rules:
            arrays |= {f"{part}.correct.clients.{rule}": np.full(clients, right)}
            arrays |= {f"{part}.correct.classes.{rule}": np.full(2, clients * right // 2)}
            records[part][rule] = Accuracy(pooled=share, mean=share, worst=share, p10=share)
    record = {
        "round": number,
        "cohort": "all",
        "evaluated": "all",
        "metrics": {},
        "rules": records["test"],
        "validation": records["validation"],
        "unseen": 0.0,
        "bytes": Traffic(up=1, down=1),
        "floats": Traffic(up=1, down=1),
        "server": {},
        "prototypes": None,
    }
    return RoundOutcome(record, arrays, {"round": 0.5}, {})
