"""Each client and class on the page: who holds what, and their accuracy in chosen rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.labels import client_label
from protonorm.analysis.summaries import describe_partition
from protonorm.report.page.accuracy import rules_of
from protonorm.report.page.curves import thinned
from protonorm.report.page.groups import Groups
from protonorm.report.page.sphere import read_snapshots, sphere
from protonorm.report.page.text import counted, rounded
from protonorm.runs.accuracy import majority_correct
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

NUMBERS = 200_000  # accuracies of single clients and classes on a page, about 6 bytes each
ROUNDS = 50  # to choose from at most
SHOWN = 200  # clients at most, of whom a page tells one by one; of more, evenly chosen ones
PARTITION = ("alpha", "classes_per_client", "seed")  # settings of a partition that name it

Array = NDArray[np.float64]


def populations_and_runs(groups: Groups) -> dict[str, Any]:
    """Collect who holds what and each run's details; runs with equal populations share one."""
    populations: dict[tuple[Any, ...], dict[str, Any]] = {}
    runs, spheres, unread = [], [], []
    count = sum(map(len, groups.values()))
    for slot, (name, found) in enumerate(groups.items()):
        for run in found:
            names = tuple(run.client_name(id) for id in range(run.info.experiment.clients))
            held = (names, tuple(run.info.classes), *(part.tobytes() for part in run.population))
            population = populations.setdefault(held, describe_population(run, name))["name"]
            seed = run.info.experiment.seed
            label = f"{name}, seed {seed}" if len(found) > 1 else name
            about = {"name": label, "method": name, "slot": slot, "seed": seed, "population": population}
            runs.append({**about, "headline": run.info.headline, **details(run, count)})
            snapshots, lacking = read_snapshots(run, count)
            unread += [f"{label}: {one}" for one in lacking]
            if snapshots:
                shown = sphere(snapshots, len(run.info.classes))
                spheres.append({"name": label, "slot": slot, "population": population, **shown})
    told = {"populations": list(populations.values()), "runs": runs, "spheres": spheres}
    return {**told, "unread": unread, "rules": rules_of(groups)}


def describe_population(run: Run, method: str) -> dict[str, Any]:
    """Say who holds what, with which networks, and what guessing the majority class gives."""
    info, (train, validation, test) = run.info, run.population
    correct = majority_correct(train, test)  # (M, K)
    clients, shown = info.experiment.clients, shown_clients(run)
    partition = describe_partition(info.experiment.partition, PARTITION)
    return {
        "name": f"{info.experiment.dataset.name}, {partition}, {counted(clients, 'client')}, as in {method}",
        "classes": list(info.classes),
        "whole": clients,  # of whom those below are shown
        "known": run.knows_samples,  # whether the numbers below are on record
        "clients": [client_label(run, id) for id in shown],
        "networks": [info.network_name(id) for id in shown],
        "train": train[shown].tolist(),
        "validation": validation[shown].tolist(),
        "test": test[shown].tolist(),
        "held": (train + validation + test).sum(0).tolist(),  # by class, of all clients
        "majority": {
            "clients": _per_cents(_shares(correct.sum(1), test.sum(1))[shown]),
            "classes": _per_cents(_shares(correct.sum(0), test.sum(0))),
        },
    }


def shown_clients(run: Run) -> list[int]:
    """Choose the clients that a page shows one by one."""
    return thinned(range(run.info.experiment.clients), SHOWN)


def details(run: Run, runs: int) -> dict[str, Any]:
    """Give a run's accuracy by client and by class, in rounds to choose from and in the reported one."""
    rules = run.info.rules
    width = len(shown_clients(run)) + len(run.info.classes)
    most = min(ROUNDS, NUMBERS // (width * len(rules) * runs))
    reported = run.chosen.record.round if run.chosen else None
    evaluated = [record for record in run.rounds if record.rules]
    chosen = {record.round for record in thinned(evaluated, max(2, most))} | {reported}
    records = [record for record in evaluated if record.round in chosen]
    return {
        "rounds": [record.round for record in records],
        "reported": reported,
        "rules": {rule: _accuracies(run, records, rule) for rule in rules},
    }


def _accuracies(run: Run, records: list[RoundRecord], rule: str) -> dict[str, Any]:
    """Give a rule's accuracies in some rounds; None for a round in which it does not exist yet."""
    shown, known = shown_clients(run), [record if record.rules.get(rule) else None for record in records]
    return {
        "clients": [_per_cents(run.by_client(one, rule)[shown]) if one else None for one in known],
        "classes": [_per_cents(run.by_class(one, rule)) if one else None for one in known],
    }


def _shares(correct: NDArray[np.int64], support: NDArray[np.int64]) -> Array:
    """Divide right answers by samples; NaN where there are no samples."""
    shares = np.full(len(support), np.nan)
    np.divide(correct, support, out=shares, where=support > 0)
    return shares


def _per_cents(shares: Array) -> list[float | None]:
    return [rounded(100 * share) for share in shares.tolist()]
