"""Prototypes on the unit sphere, seen in three dimensions: an orthogonal projection, which lengthens no distance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import safetensors
from numpy.typing import NDArray

from protonorm.history import Run
from protonorm.report.page.lines import thinned
from protonorm.report.page.words import listed, rounded, significant

Array = NDArray[np.float64]

NUMBERS = 200_000  # coordinates and angles on a page
THOUSANDTHS = 1000  # coordinates are sent as whole thousandths
RECORDED = 50  # rounds of a run whose prototypes are kept, evenly spaced
FLAT = 1e-9  # a direction in which nothing varies


class Snapshot(NamedTuple):
    """The global prototypes after a round."""

    round: int
    classes: NDArray[np.int64]  # (K',)
    units: Array  # (K', d), of length one
    lengths: Array  # (K',)


def read_snapshots(run: Run, runs: int = 1) -> tuple[list[Snapshot], list[str]]:
    """Read recorded prototypes, of no more rounds than a page of so many runs can hold, and say which are lost."""
    paths = {int(path.stem): path for path in run.folder.glob("prototypes/*.safetensors") if path.stem.isdigit()}
    done = sorted(round for round in paths if round <= len(run.history))
    most = NUMBERS // (5 * len(run.about["classes"]) * runs)
    found = {round: _read(run, round) for round in thinned(done, max(2, most))}
    unread = [round for round, shot in found.items() if shot is None]
    missing = sorted(expected(run) - set(done))
    told = [(missing, "not there"), (unread, "damaged and could not be read")]
    return [shot for shot in found.values() if shot], [_lost(rounds, why) for rounds, why in told if rounds]


def expected(run: Run) -> set[int]:
    """Find the rounds of which a record keeps the prototypes."""
    rounds = run.experiment["rounds"]
    kept = np.linspace(1, rounds, min(RECORDED, rounds)).round().astype(int).tolist()
    return {round for round in kept if round <= len(run.history) and run.history[round - 1].get("prototypes")}


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


def _lost(rounds: list[int], why: str) -> str:
    names = [f"{round}.safetensors" for round in rounds]
    shown = names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"]
    return f"Of the folder prototypes, {listed(shown)} {'is' if len(names) == 1 else 'are'} {why}."


def _read(run: Run, round: int) -> Snapshot | None:
    path = run.folder / "prototypes" / f"{round}.safetensors"
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            classes = np.asarray(file.get_tensor("classes")).astype(np.int64)
            vectors = np.asarray(file.get_tensor("prototypes")).astype(np.float64)
    except (safetensors.SafetensorError, TypeError, OSError):
        return None
    known = vectors.ndim == 2 and len(vectors) and classes.shape == vectors.shape[:1] and np.isfinite(vectors).all()
    if not known or classes.min() < 0 or classes.max() >= len(run.about["classes"]):
        return None
    lengths = np.linalg.norm(vectors, axis=1)
    units = vectors / np.where(lengths > 0, lengths, 1.0)[:, None]
    return Snapshot(round, classes, units, lengths)
