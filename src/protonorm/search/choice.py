"""Choose settings by validation accuracy. Test numbers decide nothing here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from protonorm.analysis.row import Cell
from protonorm.analysis.statistics import mean_interval
from protonorm.search.grid import Point
from protonorm.search.sweeping import Standing, Sweep, stand


@dataclass(frozen=True, eq=False)
class Score:
    """What a point of a grid reached."""

    point: Point
    standings: Mapping[int, Standing]  # by seed

    @property
    def values(self) -> dict[int, float]:
        """Give the mean validation accuracy of the clients in the chosen round of each seed that is done."""
        found = {seed: validation_accuracy(one) for seed, one in self.standings.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def eligible(self) -> bool:
        """Tell whether every seed is done; of one that lacks a seed nobody knows what it would have lost."""
        return len(self.values) == len(self.standings)

    @property
    def validation(self) -> Cell | None:
        """Give the mean over seeds."""
        return cell(list(self.values.values()))

    @property
    def test(self) -> Cell | None:
        """Give the pooled test accuracy in the rounds that validation chose."""
        return cell([value for one in self.standings.values() if (value := tested_accuracy(one)) is not None])

    @property
    def rounds(self) -> list[int]:
        """Give the chosen round of each seed that is done."""
        chosen = [self.standings[seed].run for seed in self.values]
        return [run.chosen.record.round for run in chosen if run and run.chosen]

    @property
    def note(self) -> str:
        """Say what is missing, in few words."""
        states = [one.state for seed, one in self.standings.items() if seed not in self.values]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def validation_accuracy(standing: Standing) -> float | None:
    """Find the mean validation accuracy of a run that is done, in the round that it chooses."""
    run = standing.run
    if standing.state != "done" or run is None or run.chosen is None or run.chosen.by != "validation":
        return None
    found = run.chosen.record.validation[run.info.headline]
    return found.mean if found else None


def tested_accuracy(standing: Standing) -> float | None:
    """Find the pooled test accuracy of a run in the round that it chooses."""
    run = standing.run
    found = run.chosen.record.rules.get(run.info.headline) if run and run.chosen else None
    return found.pooled if found else None


def cell(values: Sequence[float]) -> Cell | None:
    """Put the numbers of several seeds together."""
    return Cell(fmean(values), interval=mean_interval(values)) if values else None


def scores_of(sweep: Sweep) -> list[Score]:
    """Read what all points reached, those of one problem together and the best first."""
    found = [
        Score(point, {seed: stand(experiment, sweep.root) for seed, experiment in point.experiments.items()})
        for point in sweep.grid.points
    ]
    problems = list(dict.fromkeys(score.point.problem for score in found))
    return sorted(found, key=lambda score: (problems.index(score.point.problem), *_rank(score)))


def winners(scores: Sequence[Score]) -> list[Score]:
    """Choose the best settings of each method, on each problem; of equals the first."""
    found: dict[Any, Score] = {}
    for score in scores:
        if score.eligible:
            found.setdefault((score.point.problem, score.point.method), score)
    return list(found.values())


def _rank(score: Score) -> tuple[bool, float]:
    return not score.eligible, -(score.validation.mean if score.validation else 0.0)
