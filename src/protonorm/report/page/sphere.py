"""Prototypes on the unit sphere, seen in three dimensions: an orthogonal projection, which lengthens no distance."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.report.page.curves import thinned
from protonorm.report.page.text import listed, rounded, significant
from protonorm.runs import layout
from protonorm.runs.run import Run

Array = NDArray[np.float64]

NUMBERS = 200_000  # coordinates and angles on a page
THOUSANDTHS = 1000  # coordinates are sent as whole thousandths
FLAT = 1e-9  # a direction in which nothing varies
FILES = 4  # named in a sentence; of more, the first ones


class Snapshot(NamedTuple):
    """The global prototypes after a round."""

    round: int
    classes: NDArray[np.int64]  # (K',)
    units: Array  # (K', d), of length one
    lengths: Array  # (K',)


def read_snapshots(run: Run, runs: int = 1) -> tuple[list[Snapshot], list[str]]:
    """Read prototypes of at most as many rounds as a page of so many runs can hold, and say which cannot be read."""
    there = [round for round in run.snapshots() if _path(run, round).exists()]
    missing = [round for round in run.snapshots() if round not in there]
    most = NUMBERS // (5 * len(run.info.classes) * runs)
    found = {round: _read(run, round) for round in thinned(there, max(2, most))}
    damaged = [round for round, shot in found.items() if shot is None]
    told = [(missing, "missing"), (damaged, "damaged")]
    return [shot for shot in found.values() if shot], [_unread(rounds, why) for rounds, why in told if rounds]


def sphere(snapshots: list[Snapshot], classes: int) -> dict[str, Any]:
    """Project all rounds on the directions in which the last round's prototypes differ most."""
    basis = directions(snapshots[-1].units)  # (d, 3)
    return {
        "rounds": [one.round for one in snapshots],
        "flat": snapshots[-1].units.shape[1] == 2,
        "dimension": snapshots[-1].units.shape[1],
        "views": [view(one, basis, classes) for one in snapshots],
    }


def view(shot: Snapshot, basis: Array, classes: int) -> dict[str, Any]:
    """Give one round's points, each one's nearest other and their true angle, and how much of the spread is shown."""
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
    """Find three orthonormal directions (d, 3): principal axes of the centred vectors, then of what is left of them.

    In the plane the axes stay as they are. Where there are fewer than three directions, the others are zero.
    """
    if units.shape[1] == 2:
        return np.eye(2, 3)
    basis = np.zeros((units.shape[1], 0))
    for rows in (units - units.mean(0), units):
        left = rows - rows @ basis @ basis.T
        _, strengths, axes = np.linalg.svd(left, full_matrices=False)
        basis = np.hstack([basis, axes[strengths > FLAT * max(1.0, len(units))][: 3 - basis.shape[1]].T])
    signs = np.sign(basis[np.abs(basis).argmax(0), range(basis.shape[1])])  # so that equal runs look equal
    return np.pad(basis * signs, ((0, 0), (0, 3 - basis.shape[1])))


def shown_share(units: Array, basis: Array) -> float:
    """Tell which share of the variance of the vectors a projection shows."""
    centred = units - units.mean(0)
    whole = float(np.square(centred).sum())
    return float(np.square(centred @ basis).sum()) / whole if whole > FLAT else 1.0


def _unread(rounds: list[int], why: str) -> str:
    names = [f"{round}.safetensors" for round in rounds]
    return f"Of the folder prototypes, {listed(names, FILES)} {'is' if len(names) == 1 else 'are'} {why}."


def _path(run: Run, round: int) -> Path:
    return run.folder / layout.PROTOTYPES / f"{round}.safetensors"


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
