"""Charts over rounds: accuracy, traffic in bytes, seconds, distances between prototypes, and their sphere."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.comparison import RULES, Cell, Row
from protonorm.analysis.statistics import Numbers, spread
from protonorm.core.text import counted, duration, listed, size_text
from protonorm.report.page.groups import Groups, per_cent, rounded, significant
from protonorm.runs import layout
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

POINTS = 300  # maximum points of a curve; more than most screens resolve
FAR = 20  # ratio of mean distances above which the axis is logarithmic
COORDINATES = 200_000  # maximum coordinates and angles of prototypes on a page
THOUSANDTHS = 1000  # coordinates are sent as integer thousandths
FLAT = 1e-9  # threshold for a direction without variance
FILES = 4  # maximum files named in a sentence
NOTHING = "No round{} has been evaluated yet."  # with the data set, if there are several
UNTESTED = "The test parts{} are not evaluated (tested=false)."

Curve = Mapping[int, float]  # value by round
Range = tuple[float, float, float]  # smallest, mean, largest
Line = dict[str, Any]  # name, slot (colour index), x, y, and optionally low and high
Chart = dict[str, Any]


def charts(groups: Groups, majorities: Sequence[Row]) -> dict[str, list[Chart]]:
    """Build all charts over rounds."""
    return {
        "accuracy": _accuracy_charts(groups, majorities),
        "prototypes": _prototype_charts(groups),
        "bytes": [_byte_chart(groups, "up"), _byte_chart(groups, "down")],
        "seconds": [_seconds_chart(groups), *_simulated_charts(groups)],
    }


def traffic(groups: Groups) -> dict[str, Any]:
    """Count each method's bytes, as means over seeds: in the last round, and in all rounds so far."""
    rows: list[dict[str, Any]] = []
    for slot, (name, runs) in enumerate(groups.items()):
        rows.append({"name": name, "slot": slot})
        for direction in ("up", "down"):
            counts = [[getattr(record.bytes, direction) for record in run.rounds] for run in runs]
            rows[-1][direction] = round(fmean(map(sum, counts)))
            rows[-1][f"round_{direction}"] = round(fmean(values[-1] if values else 0 for values in counts))
    sent = listed([f"{row['name']} {size_text(row['up'] + row['down'])}" for row in rows])
    return {"rows": rows, "conclusion": f"Sent in all rounds: {sent}."}


def rules_of(groups: Groups) -> list[str]:
    """List the rules of all runs, the known rules in their usual order."""
    rules = dict.fromkeys(rule for runs in groups.values() for run in runs for rule in run.info.rules)
    return [*(rule for rule in RULES if rule in rules), *(rule for rule in rules if rule not in RULES)]


def is_untested(run: Run) -> bool:
    """Return whether a run evaluates only the validation parts, as the runs of a search do."""
    return run.info.experiment.plain().get("tested") is False


def untimed(run: Run) -> str:
    """Return a note on rounds without a recorded time; empty if all rounds have one."""
    timed, rounds = len(run.seconds), len(run.rounds)
    return f"timings.jsonl holds the times of {timed} of {rounds} rounds" if timed < rounds else ""


def thinned(items: Sequence[Any], limit: int) -> list[Any]:
    """Return at most `most` items, evenly spaced, including the first and the last."""
    if len(items) <= limit:
        return list(items)
    chosen = np.unique(np.linspace(0, len(items) - 1, max(limit, 2)).round().astype(int))
    return [items[i] for i in chosen]


def _over_seeds(name: str, slot: int, curves: Sequence[Curve], scale: float = 1.0, upper: float = np.inf) -> Line:
    """Average curves over the seeds that reached each round; the band is that of tables, from 0 to `most`."""
    rounds = thinned(sorted(set().union(*curves)), POINTS)
    values = [[scale * curve[round] for curve in curves if round in curve] for round in rounds]
    means = list(map(fmean, values))
    line = {"name": name, "slot": slot, "x": rounds, "y": list(map(significant, means))}
    if any(len(seeds) > 1 for seeds in values):
        bands = [spread(seeds) or (seeds[0], seeds[0]) for seeds in values]
        line["low"], line["high"] = (list(map(significant, ends)) for ends in np.clip(bands, 0, upper).T)
    return line


def _lines(groups: Groups, curve: Callable[[Run], Curve], scale: float = 1.0) -> list[Line]:
    """Build a line for each method that has any value."""
    lines = [_over_seeds(name, slot, list(map(curve, runs)), scale) for slot, (name, runs) in enumerate(groups.items())]
    return [line for line in lines if line["x"]]


def _chart(id: str, title: str, label: str, lines: Sequence[Line], conclusion: str, **options: Any) -> Chart:
    """Build the description of a chart; its conclusion also serves readers who cannot see it."""
    return {"id": id, "title": title, "label": label, "lines": list(lines), "conclusion": conclusion, **options}


def _accuracy_charts(groups: Groups, majorities: Sequence[Row]) -> list[Chart]:
    """Build one chart of all rules for a single method; for several methods, one chart per rule.

    Where runs differ in their populations, no majority level applies to all methods, and none is drawn.
    """
    level, drawn = majorities[0].cells["accuracy"] if len(majorities) == 1 else None, []
    if len(groups) == 1:
        (runs,) = groups.values()
        lines = [_accuracy_line(rule, slot, runs, rule) for slot, rule in enumerate(rules_of(groups))]
        return [_accuracy_chart("accuracy", "Every rule", lines, level)]
    for rule in rules_of(groups):
        lines = [_accuracy_line(name, slot, runs, rule) for slot, (name, runs) in enumerate(groups.items())]
        drawn.append(_accuracy_chart(f"accuracy-{rule}", f"{rule}: {RULES.get(rule, rule)}", lines, level))
    return drawn


def _accuracy_line(name: str, slot: int, runs: Sequence[Run], rule: str) -> Line:
    """Build the line of a method's pooled accuracy in per cent, with the reported round of each run."""
    values = [
        {record.round: accuracy.pooled for record in run.rounds if (accuracy := record.rules.get(rule))} for run in runs
    ]
    curves = list(filter(None, values))
    chosen = [(run.chosen.record.round, curve) for run, curve in zip(runs, values, strict=True) if run.chosen]
    last = fmean(100 * curve[max(curve)] for curve in curves) if curves else None  # of each seed, in its own last round
    return _over_seeds(name, slot, curves, 100.0, 100.0) | {
        "reported": [[round, significant(100 * curve[round])] for round, curve in chosen if round in curve],
        "ends": sorted({max(curve) for curve in curves}),
        "last": last,
        "untested": all(map(is_untested, runs)),
    }


def _accuracy_chart(id: str, title: str, lines: Sequence[Line], level: Cell | None) -> Chart:
    """Build a chart of accuracies; its conclusion gives each method's last accuracy and the reported rounds."""
    evaluated = [line for line in lines if line["x"]]
    conclusion = (UNTESTED if all(line["untested"] for line in lines) else NOTHING).format("")
    reference: list[dict[str, Any]] = [{"name": "majority", "y": rounded(100 * level.mean)}] if level else []
    if evaluated:
        done = max(line["ends"][-1] for line in evaluated)
        ends = listed([f"{line['name']} {line['last']:.2f} %{_ended(line['ends'], done)}" for line in evaluated])
        remarks = [f"; guessing the majority class gives {per_cent(line['y'] / 100)}" for line in reference]
        conclusion = f"After {counted(done, 'round')}: {ends}{''.join(remarks)}."
    rounds = {line["name"]: sorted({round for round, _ in line["reported"]}) for line in evaluated if line["reported"]}
    texts = {name: listed(list(map(str, numbers))) for name, numbers in rounds.items()}
    if len(set(texts.values())) == 1:
        conclusion += f" Reported round: {next(iter(texts.values()))}."
    elif texts:
        conclusion += f" Reported rounds: {', '.join(f'{name} {text}' for name, text in texts.items())}."
    return _chart(id, title, "test accuracy, pooled (%)", evaluated, conclusion, reference=reference, most=100)


def _ended(rounds: Sequence[int], done: int) -> str:
    """Return the last rounds of a method's seeds; empty if all reached the last round of the chart."""
    if list(rounds) == [done]:
        return ""
    return f" (round {rounds[0]})" if len(rounds) == 1 else f" (rounds {rounds[0]} to {rounds[-1]})"


def _byte_chart(groups: Groups, direction: str) -> Chart:
    """Build the chart of the bytes that all clients together send or receive in each round."""
    lines = _lines(groups, lambda run: {record.round: getattr(record.bytes, direction) for record in run.rounds}, 1e-3)
    ends = listed([f"{line['name']} {size_text(1000 * line['y'][-1])}" for line in lines])
    conclusion = f"In the last round, all clients together: {ends}." if ends else "No round is done yet."
    return _chart(f"bytes-{direction}", f"Bytes {direction}, a round", f"kB {direction}", lines, conclusion, zero=True)


def _seconds_chart(groups: Groups) -> Chart:
    """Build the chart of the seconds of each round."""
    totals = [f"{name} {duration(sum(runs[0].seconds.values()))}" for name, runs in groups.items() if runs[0].seconds]
    conclusion = f"All rounds together (first seed): {listed(totals)}." if totals else "There are no times on record."
    for name, run in ((name, run) for name, runs in groups.items() for run in runs if untimed(run)):
        conclusion += f" {name}, seed {run.info.experiment.seed}: {untimed(run)}."
    lines = _lines(groups, lambda run: run.seconds)
    return _chart("seconds", "Seconds a round", "seconds", lines, conclusion, zero=True)


def _simulated_charts(groups: Groups) -> list[Chart]:
    """Build the chart of simulated seconds, summed over rounds; none without a simulated system."""

    def summed(run: Run) -> dict[int, float]:
        seconds = {record.round: record.server.get("simulated.seconds", 0.0) for record in run.rounds}
        return dict(zip(seconds, accumulate(seconds.values()), strict=True)) if any(seconds.values()) else {}

    lines = _lines(groups, summed)
    ends = listed([f"{line['name']} {duration(line['y'][-1])}" for line in lines])
    conclusion = f"Simulated time of all rounds: {ends}."
    return [_chart("simulated", "Simulated seconds", "seconds so far", lines, conclusion, zero=True)] if lines else []


def _prototype_charts(groups: Groups) -> list[Chart]:
    """Build the charts of distances, and of margins relative to the mean distance; none without prototypes."""
    distances, margins = _ranges(groups, _distances), _ranges(groups, _margins)
    if not distances:
        return []
    means = [value for line in distances for value in line["y"] if value]
    far = bool(means) and max(means) > FAR * min(means)
    ends = _last_range(distances, "mean distance"), _last_range(margins, "mean relative margin")
    return [
        _chart("distances", "Pairwise distances", "distance", distances, ends[0], log=far, zero=True),
        _chart("margins", "Margins", "margin ÷ mean distance", margins, ends[1], zero=True),
    ]


def _ranges(groups: Groups, part: Callable[[Run, RoundRecord], Range | None]) -> list[Line]:
    """Build lines of the mean of each round with a band from smallest to largest, averaged over seeds."""
    lines = []
    for slot, (name, runs) in enumerate(groups.items()):
        curves = [{record.round: numbers for record in run.rounds if (numbers := part(run, record))} for run in runs]
        rounds = thinned(sorted(set[int]().union(*curves)), POINTS)
        values = [np.mean([curve[round] for curve in curves if round in curve], axis=0) for round in rounds]
        low, y, high = ([significant(value[i]) for value in values] for i in range(3))
        lines.append({"name": name, "slot": slot, "x": rounds, "y": y, "low": low, "high": high})
    return [line for line in lines if line["x"]]


def _distances(_: Run, record: RoundRecord) -> Range | None:
    distances = record.prototypes
    return (distances.min, distances.mean, distances.max) if distances else None


def _margins(run: Run, record: RoundRecord) -> Range | None:
    margins = run.margins(record)
    if margins is None or record.prototypes is None or not record.prototypes.mean:
        return None
    shares = margins[1] / record.prototypes.mean  # (K',)
    return float(shares.min()), float(shares.mean()), float(shares.max())


def _last_range(lines: Sequence[Line], title: str) -> str:
    ends = [(line["name"], *(line[part][-1] for part in ("y", "low", "high"))) for line in lines]
    texts = [f"{name} {mean:.3g} (from {low:.3g} to {high:.3g})" for name, mean, low, high in ends]
    return f"After the last recorded round, {title}: {listed(texts)}."


class Snapshot(NamedTuple):
    """Global prototypes after a round."""

    round: int
    classes: NDArray[np.int64]  # (K',)
    units: Numbers  # (K', d), unit length
    lengths: Numbers  # (K',)


def read_snapshots(run: Run, runs: int) -> tuple[list[Snapshot], list[str]]:
    """Read the prototypes of as many rounds as a page of `runs` runs can hold, and note unreadable files."""
    folder, rounds = run.folder / layout.PROTOTYPES, run.snapshots()
    available = [round for round in rounds if layout.exists(folder / f"{round}.safetensors")]
    limit = COORDINATES // (5 * len(run.info.classes) * runs)
    shots = {round: _read(run, round) for round in thinned(available, max(2, limit))}
    unread = {"missing": [round for round in rounds if round not in available]}
    unread["damaged"] = [round for round, shot in shots.items() if shot is None]
    sentences = []
    for why, rounds_unread in unread.items():
        names = listed([f"{round}.safetensors" for round in rounds_unread], FILES)
        if rounds_unread:
            sentences.append(f"Of the folder prototypes, {names} {'is' if len(rounds_unread) == 1 else 'are'} {why}.")
    return list(filter(None, shots.values())), sentences


def sphere(snapshots: list[Snapshot], classes: int) -> dict[str, Any]:
    """Project all rounds on the directions in which the last round's prototypes differ most."""
    basis = directions(snapshots[-1].units)  # (d, 3)
    rounds, views = [shot.round for shot in snapshots], [_view(shot, basis, classes) for shot in snapshots]
    return {"rounds": rounds, "flat": len(basis) == 2, "dimension": len(basis), "views": views}


def _view(shot: Snapshot, basis: Numbers, classes: int) -> dict[str, Any]:
    """Return one round's points, each with its nearest neighbour and their angle, and the share of variance shown."""
    points = np.rint(shot.units @ basis * THOUSANDTHS).astype(int)  # (K', 3)
    placed: list[list[float | None] | None] = [None] * classes
    cosines = np.clip(shot.units @ shot.units.T, -1, 1)
    np.fill_diagonal(cosines, -2)
    for label, point, row in zip(shot.classes, points, cosines, strict=True):
        near, alone = int(row.argmax()), len(points) < 2
        angle = None if alone else rounded(np.degrees(np.arccos(max(row[near], -1))), 1)
        placed[label] = [*point.tolist(), -1 if alone else int(shot.classes[near]), angle]
    return {
        "points": placed,
        "share": rounded(shown_share(shot.units, basis), 4),
        "lengths": [significant(value, 3) for value in (shot.lengths.min(), shot.lengths.max())],
    }


def directions(units: Numbers) -> Numbers:
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
    signs = np.sign(basis[np.abs(basis).argmax(0), range(basis.shape[1])])  # fixed, so that equal runs look equal
    return np.pad(basis * signs, ((0, 0), (0, 3 - basis.shape[1])))


def shown_share(units: Numbers, basis: Numbers) -> float:
    """Return the share of the vectors' variance that a projection shows."""
    centred = units - units.mean(0)
    total = float(np.square(centred).sum())
    return float(np.square(centred @ basis).sum()) / total if total > FLAT else 1.0


def _read(run: Run, round: int) -> Snapshot | None:
    with suppress(ValueError):
        classes, vectors = run.prototypes(round)
        if np.isfinite(vectors).all():
            lengths = np.linalg.norm(vectors, axis=1)
            return Snapshot(round, classes, vectors / np.where(lengths > 0, lengths, 1.0)[:, None], lengths)
    return None
