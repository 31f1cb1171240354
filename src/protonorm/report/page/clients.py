"""Clients and classes on the page: samples, accuracy in selectable rounds, and prototypes on the sphere."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.breakdown import describe_partition
from protonorm.analysis.settings import client_label
from protonorm.core.text import counted, listed
from protonorm.report.page.charts import rules_of, thinned
from protonorm.report.page.groups import Groups, rounded, significant
from protonorm.runs import layout
from protonorm.runs.arrays import majority_correct
from protonorm.runs.run import Run

NUMBERS = 200_000  # maximum accuracies of single clients and classes on a page, about 6 bytes each
ROUNDS = 50  # maximum selectable rounds
SHOWN = 200  # maximum clients shown individually; of more, an evenly spaced subset
PARTITION = ("alpha", "classes_per_client", "seed")  # partition settings that are part of its name
COORDINATES = 200_000  # maximum coordinates and angles of prototypes on a page
THOUSANDTHS = 1000  # coordinates are sent as integer thousandths
FLAT = 1e-9  # threshold for a direction without variance
FILES = 4  # maximum files named in a sentence

Array = NDArray[np.float64]


def populations_and_runs(groups: Groups) -> dict[str, Any]:
    """Collect the populations and each run's details; runs with equal populations share one."""
    populations: dict[tuple[Any, ...], dict[str, Any]] = {}
    runs, spheres, unread = [], [], []
    count = sum(map(len, groups.values()))
    for slot, (name, found) in enumerate(groups.items()):
        for run in found:
            names = tuple(run.client_name(id) for id in range(run.info.experiment.clients))
            held = (names, tuple(run.info.classes), *(part.tobytes() for part in run.population))
            population = populations.setdefault(held, _describe_population(run, name))["name"]
            seed = run.info.experiment.seed
            label = f"{name}, seed {seed}" if len(found) > 1 else name
            about = {"name": label, "method": name, "slot": slot, "seed": seed, "population": population}
            runs.append({**about, "headline": run.info.headline, **_details(run, count)})
            snapshots, lacking = _read_snapshots(run, count)
            unread += [f"{label}: {one}" for one in lacking]
            if snapshots:
                shown = _sphere(snapshots, len(run.info.classes))
                spheres.append({"name": label, "slot": slot, "population": population, **shown})
    told = {"populations": list(populations.values()), "runs": runs, "spheres": spheres}
    return {**told, "unread": unread, "rules": rules_of(groups)}


def _describe_population(run: Run, method: str) -> dict[str, Any]:
    """Describe a population: samples and networks of the clients, and the accuracy of the majority class."""
    info, (train, validation, test) = run.info, run.population
    correct = majority_correct(train, test)  # (M, K)
    clients, shown = info.experiment.clients, _shown_clients(run)
    partition = describe_partition(info.experiment.partition, PARTITION)
    return {
        "name": f"{info.experiment.dataset.name}, {partition}, {counted(clients, 'client')}, as in {method}",
        "classes": list(info.classes),
        "whole": clients,  # number of all clients; the lists below hold the shown clients
        "known": run.knows_samples,  # whether the sample counts below are on record
        "clients": [client_label(run, id) for id in shown],
        "networks": [info.network_name(id) for id in shown],
        "train": train[shown].tolist(),
        "validation": validation[shown].tolist(),
        "test": test[shown].tolist(),
        "held": (train + validation + test).sum(0).tolist(),  # by class, over all clients
        "majority": {
            "clients": _per_cents(_shares(correct.sum(1), test.sum(1))[shown]),
            "classes": _per_cents(_shares(correct.sum(0), test.sum(0))),
        },
    }


def _shown_clients(run: Run) -> list[int]:
    """Select the clients that a page shows individually."""
    return thinned(range(run.info.experiment.clients), SHOWN)


def _details(run: Run, runs: int) -> dict[str, Any]:
    """Return a run's accuracy by client and by class, in the selectable rounds and the reported round.

    It is None for a round in which a rule was not evaluated.
    """
    shown, rules = _shown_clients(run), run.info.rules
    most = min(ROUNDS, NUMBERS // ((len(shown) + len(run.info.classes)) * len(rules) * runs))
    reported = run.chosen.record.round if run.chosen else None
    evaluated = [record for record in run.rounds if record.rules]
    chosen = {record.round for record in thinned(evaluated, max(2, most))} | {reported}
    records = [record for record in evaluated if record.round in chosen]
    accuracies = {}
    for rule in rules:
        known = [record if record.rules.get(rule) else None for record in records]
        accuracies[rule] = {
            "clients": [_per_cents(run.by_client(one, rule)[shown]) if one else None for one in known],
            "classes": [_per_cents(run.by_class(one, rule)) if one else None for one in known],
        }
    return {"rounds": [record.round for record in records], "reported": reported, "rules": accuracies}


def _shares(correct: NDArray[np.int64], support: NDArray[np.int64]) -> Array:
    """Divide correct predictions by samples; NaN where there are no samples."""
    shares = np.full(len(support), np.nan)
    np.divide(correct, support, out=shares, where=support > 0)
    return shares


def _per_cents(shares: Array) -> list[float | None]:
    return [rounded(100 * share) for share in shares.tolist()]


class Snapshot(NamedTuple):
    """Global prototypes after a round."""

    round: int
    classes: NDArray[np.int64]  # (K',)
    units: Array  # (K', d), unit length
    lengths: Array  # (K',)


def _read_snapshots(run: Run, runs: int) -> tuple[list[Snapshot], list[str]]:
    """Read the prototypes of as many rounds as a page of `runs` runs can hold, and note unreadable files."""
    folder, rounds = run.folder / layout.PROTOTYPES, run.snapshots()
    there = [round for round in rounds if layout.exists(folder / f"{round}.safetensors")]
    most = COORDINATES // (5 * len(run.info.classes) * runs)
    found = {round: _read(run, round) for round in thinned(there, max(2, most))}
    unread = {"missing": [round for round in rounds if round not in there]}
    unread["damaged"] = [round for round, shot in found.items() if shot is None]
    told = []
    for why, some in unread.items():
        names = listed([f"{round}.safetensors" for round in some], FILES)
        told += [f"Of the folder prototypes, {names} {'is' if len(some) == 1 else 'are'} {why}."] if some else []
    return [shot for shot in found.values() if shot], told


def _sphere(snapshots: list[Snapshot], classes: int) -> dict[str, Any]:
    """Project all rounds on the directions in which the last round's prototypes differ most."""
    basis = directions(snapshots[-1].units)  # (d, 3)
    return {
        "rounds": [one.round for one in snapshots],
        "flat": snapshots[-1].units.shape[1] == 2,
        "dimension": snapshots[-1].units.shape[1],
        "views": [_view(one, basis, classes) for one in snapshots],
    }


def _view(shot: Snapshot, basis: Array, classes: int) -> dict[str, Any]:
    """Return one round's points, each with its nearest neighbour and their angle, and the share of variance shown."""
    points = np.rint(shot.units @ basis * THOUSANDTHS).astype(int)  # (K', 3)
    placed: list[list[float | None] | None] = [None] * classes
    cosines = np.clip(shot.units @ shot.units.T, -1, 1)
    np.fill_diagonal(cosines, -2)
    for row, (label, point) in enumerate(zip(shot.classes, points, strict=True)):
        near = int(cosines[row].argmax())
        alone = len(points) < 2
        angle = None if alone else rounded(np.degrees(np.arccos(max(cosines[row, near], -1))), 1)
        placed[label] = [*point.tolist(), -1 if alone else int(shot.classes[near]), angle]
    return {
        "points": placed,
        "share": rounded(shown_share(shot.units, basis), 4),
        "lengths": [significant(value, 3) for value in (shot.lengths.min(), shot.lengths.max())],
    }


def directions(units: Array) -> Array:
    """Compute three orthonormal directions (d, 3): principal axes of the centred vectors, then of their residuals.

    In the plane the axes stay as they are. With fewer than three directions, the others are zero.
    """
    if units.shape[1] == 2:
        return np.eye(2, 3)
    basis = np.zeros((units.shape[1], 0))
    for rows in (units - units.mean(0), units):
        left = rows - rows @ basis @ basis.T
        _, strengths, axes = np.linalg.svd(left, full_matrices=False)
        basis = np.hstack([basis, axes[strengths > FLAT * max(1.0, len(units))][: 3 - basis.shape[1]].T])
    signs = np.sign(
        basis[np.abs(basis).argmax(0), range(basis.shape[1])]
    )  # fix the signs, so that equal runs look equal
    return np.pad(basis * signs, ((0, 0), (0, 3 - basis.shape[1])))


def shown_share(units: Array, basis: Array) -> float:
    """Return the share of the vectors' variance that a projection shows."""
    centred = units - units.mean(0)
    whole = float(np.square(centred).sum())
    return float(np.square(centred @ basis).sum()) / whole if whole > FLAT else 1.0


def _read(run: Run, round: int) -> Snapshot | None:
    try:
        classes, vectors = run.prototypes(round)
    except ValueError:
        return None
    if not np.isfinite(vectors).all():
        return None
    lengths = np.linalg.norm(vectors, axis=1)
    units = vectors / np.where(lengths > 0, lengths, 1.0)[:, None]
    return Snapshot(round, classes, units, lengths)
