"""Results of a sweep: scores, selection by validation accuracy, heat maps, and the estimated time left."""

import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from protonorm.analysis.comparison import Cell
from protonorm.analysis.statistics import mean_interval
from protonorm.core.progress import steps
from protonorm.federation.rounds import Round
from protonorm.search.grid import Point
from protonorm.search.sweeping import Job, Standing, Sweep, stand
from protonorm.session.running import run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PANELS = 24  # maximum number of panels of a map
COLUMNS = 4  # panels per row
LONG = 10.0  # seconds; in longer first rounds the start-up time is negligible
TEXTS = 12  # maximum number of values of a setting for which cells are annotated


@dataclass(frozen=True, eq=False)
class Score:
    """Result of a grid point."""

    point: Point
    standings: Mapping[int, Standing]  # by seed

    @property
    def values(self) -> dict[int, float]:
        """Mean validation accuracy of the clients in the chosen round, by finished seed."""
        return {
            seed: accuracy.mean
            for seed, (state, run, _) in self.standings.items()
            if state == "done" and run and run.chosen and run.chosen.by == "validation"
            if (accuracy := run.chosen.record.validation[run.info.headline])
        }

    @property
    def eligible(self) -> bool:
        """Whether all seeds are finished; a missing seed would bias the mean."""
        return len(self.values) == len(self.standings)

    @property
    def validation(self) -> Cell | None:
        """Mean validation accuracy over seeds."""
        return _mean(list(self.values.values()))

    @property
    def test(self) -> Cell | None:
        """Mean pooled test accuracy over seeds, in the rounds chosen by validation."""
        runs = [standing.run for standing in self.standings.values() if standing.run]
        accuracies = [run.chosen.record.rules.get(run.info.headline) for run in runs if run.chosen]
        return _mean([accuracy.pooled for accuracy in accuracies if accuracy])

    @property
    def rounds(self) -> list[int]:
        """Chosen round of each finished seed."""
        runs = [self.standings[seed].run for seed in self.values]
        return [run.chosen.record.round for run in runs if run and run.chosen]

    @property
    def note(self) -> str:
        """Counts of unfinished seeds by state, as text."""
        states = [standing.state for seed, standing in self.standings.items() if seed not in self.values]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _mean(values: Sequence[float]) -> Cell | None:
    return Cell(fmean(values), interval=mean_interval(values)) if values else None


def scores_of(sweep: Sweep) -> list[Score]:
    """Read the scores of all points, grouped by problem and sorted best first."""
    scores = [
        Score(point, {seed: stand(experiment, sweep.root) for seed, experiment in point.experiments.items()})
        for point in sweep.grid.points
    ]
    problems = list(dict.fromkeys(score.point.problem for score in scores))

    def rank(score: Score) -> tuple[int, bool, float]:
        accuracy = score.validation.mean if score.validation else 0.0
        return problems.index(score.point.problem), not score.eligible, -accuracy

    return sorted(scores, key=rank)


def winners(scores: Sequence[Score]) -> list[Score]:
    """Select the best settings of each method on each problem; the first of ties."""
    best: dict[tuple[object, str], Score] = {}
    for score in scores:
        if score.eligible:
            best.setdefault((score.point.problem, score.point.method), score)
    return list(best.values())


class Estimate(NamedTuple):
    """Estimated duration of runs."""

    seconds: float
    how: str  # basis of the estimate


class _Enough(Exception):
    """Signal that ends a run after its first round."""


def estimate(sweep: Sweep, jobs: Sequence[Job], count: int, processes: int) -> Estimate:
    """Estimate the duration of runs, with `count` runs in parallel on `processes` processes.

    The seconds per round come from recorded rounds, or else from one round of the method that is timed now.
    """
    waiting, standings = {job.key: job.rounds for job in jobs}, sweep.standings()
    recorded: dict[str, list[float]] = {}  # by method: seconds of rounds
    left, points = Counter[str](), dict[str, Point]()  # by method: rounds, and an example
    for point, _, experiment in sweep.grid.runs():
        if (record := standings[experiment.key].run) and record.seconds:
            recorded.setdefault(point.method, []).extend(record.seconds.values())
        if rounds := waiting.pop(experiment.key, 0):
            left[point.method] += rounds
            points.setdefault(point.method, point)
    unknown = [method for method in left if method not in recorded]
    takes = {method: median(seconds) / count for method, seconds in recorded.items()}
    takes |= {method: timed_round(points[method]) / processes for method in steps(unknown, "one round of each method")}
    sources = ["rounds of this sweep that are on record"] if len(unknown) < len(left) else []
    sources += [f"one round each of {', '.join(unknown)}, timed now"] if unknown else []
    return Estimate(sum(rounds * takes[method] for method, rounds in left.items()), " and ".join(sources))


def timed_round(point: Point) -> float:
    """Return the seconds of one round of a point, run serially in a temporary folder.

    A short first round is mostly start-up, so that the second one is measured.
    """
    taken: list[float] = []

    def stop(round: Round) -> None:
        taken.append(round.seconds["round"])
        if len(taken) > 1 or taken[0] >= LONG:
            raise _Enough

    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        run(next(iter(point.experiments.values())), out=Path(folder), engine="serial", watch=stop)
    return taken[-1]


def sweep_map(scores: Sequence[Score], swept: Sequence[str]) -> "Figure":
    """Draw heat maps of mean validation accuracy over two settings, a panel per method and value of other settings.

    Cells without a finished run for every seed are empty.
    """
    import matplotlib  # slow to import
    from matplotlib.figure import Figure

    from protonorm.report.figures import STYLE

    panels: dict[str, list[Score]] = {}
    for score in scores:
        chosen = score.point.chosen
        further = [f"{name.split('.')[-1]}={chosen[name]}" for name in swept[2:] if name in chosen]
        panels.setdefault(", ".join([score.point.method, *further]), []).append(score)
    shown = dict(list(panels.items())[:PANELS])
    finite = [value for panel in shown.values() for score in panel if not math.isnan(value := _per_cent(score))]
    limits = (min(finite), max(finite)) if finite else (0.0, 100.0)
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(1.2 + 3.0 * columns, 0.6 + 2.4 * rows), layout="constrained")
        all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
        drawn = zip(all_axes, shown.items(), strict=False)
        images = [_draw(axes, title, panel, swept[:2], limits) for axes, (title, panel) in drawn]
        for axes in all_axes[len(shown) :]:
            axes.set_axis_off()
        figure.colorbar(images[0], ax=list(all_axes), label="validation accuracy, clients' mean (%)")
        if len(panels) > len(shown):
            figure.suptitle(f"the first {PANELS} of {len(panels)} panels")
        return figure


def _draw(
    axes: "Axes", title: str, scores: Sequence[Score], names: Sequence[str], limits: tuple[float, float]
) -> "AxesImage":
    """Draw one panel: the second setting on the x axis, the first on the y axis, or a single setting on x."""
    from protonorm.report.drawing import label_text  # slow to import

    present = [name for name in reversed(names) if any(name in score.point.chosen for score in scores)]
    across, upwards = [*present, "", ""][:2]
    columns, rows = _values(scores, across), _values(scores, upwards)
    field = np.full((len(rows), len(columns)), np.nan)
    for score in scores:
        field[rows.index(_value(score, upwards)), columns.index(_value(score, across))] = _per_cent(score)
    image = axes.imshow(field, aspect="auto", cmap="viridis", origin="lower", vmin=limits[0], vmax=limits[1])
    axes.set_xticks(range(len(columns)), map(label_text, columns))
    axes.set_yticks(range(len(rows)), map(label_text, rows))
    axes.set_xlabel(label_text(across))
    axes.set_ylabel(label_text(upwards))
    axes.set_title(label_text(title, 40), fontsize=9)
    for (row, column), value in np.ndenumerate(field if max(field.shape) <= TEXTS else np.empty((0, 0))):
        if not np.isnan(value):
            colour = "white" if value < sum(limits) / 2 else "black"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)
    return image


def _values(scores: Sequence[Score], name: str) -> list[str]:
    """List the values of a setting: numbers sorted, others in the order entered."""
    if all(isinstance(score.point.chosen.get(name), int | float) for score in scores):
        scores = sorted(scores, key=lambda score: float(score.point.chosen[name]))
    return list(dict.fromkeys(_value(score, name) for score in scores))


def _value(score: Score, name: str) -> str:
    value = score.point.chosen.get(name)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _per_cent(score: Score) -> float:
    return 100 * score.validation.mean if score.eligible and score.validation else math.nan
