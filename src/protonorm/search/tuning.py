"""A search for settings: trials that are stopped when they fall behind, chosen by validation accuracy alone.

Each trial is a run of its own in the search's folder, of which only the validation parts are evaluated. Whatever
stopped a search, the same command goes on from the last round, and tries what an unbroken one would have tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.core.progress import report
from protonorm.errors import Diverged
from protonorm.runs.schema import RoundRecord
from protonorm.search.journal import import_optuna, next_trial, open_study, values_of
from protonorm.search.space import Space
from protonorm.search.sweeping import stand
from protonorm.session.comparing import run_or_tell
from protonorm.session.running import run, tidy

if TYPE_CHECKING:
    import optuna

    from protonorm.analysis.comparison import Unread
    from protonorm.runs.run import Run

FOLDER = "searches"  # under that of all runs
FRESH = 3  # seeds with which the best settings are run in the end
CUT = "cut"  # the state of a trial for which there were no rounds left


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)


class _Stop(Exception):
    """A trial is not worth going on with."""


class _UsedUp(Exception):
    """All rounds that the search may take are run."""


@dataclass(frozen=True)
class Trial:
    """What came of one trial."""

    number: int
    values: dict[str, Any]  # of the searched settings
    key: str  # of its run
    rounds: int  # that were run
    validation: float | None  # the best so far; None if it diverged
    state: str  # complete, stopped, diverged, or cut: the rounds were used up, and it goes on when there are more

    @property
    def whole(self) -> bool:
        """Tell whether it was run to its end, so that it can be chosen."""
        return self.state == "complete"


@dataclass(frozen=True)
class Search:
    """A space to search, and the folder of all runs."""

    space: Space
    root: Path
    engine: str | None = None
    workers: int | None = None

    @property
    def folder(self) -> Path:
        """Find the folder of this search: its journal, and the runs of its trials."""
        return self.root / FOLDER / self.space.name

    def run(self, trials: int, budget: int | None = None, tell: Callable[[Trial], None] | None = None) -> list[Trial]:
        """Do trials until there are so many, or so many rounds are run; list all of them."""
        rounds = self._experiment(self._first_values()).rounds
        with open_study(self.folder, self.space, rounds) as study:
            while True:
                found = trials_of(study)
                ended = [one for one in found if one.state != CUT]
                left = None if budget is None else budget - used_rounds(ended)
                report("trials", len(ended), trials)
                if len(ended) >= trials or (left is not None and left <= 0):
                    return found
                goes_on = self._try(study, left, ended)
                found = trials_of(study)
                if tell:
                    tell(found[-1])
                if not goes_on:
                    return found

    def fresh_seeds(self, count: int = FRESH) -> range:
        """Give so many seeds that the search has not seen."""
        return range(self.space.seed + 1, self.space.seed + 1 + count)

    def confirm(
        self, values: Mapping[str, Any], count: int = FRESH, tell: Callable[[str], None] = _warn
    ) -> list[Run | Unread]:
        """Run chosen values with fresh seeds, and test them; tell of a run that diverges or is damaged, and go on."""
        start = partial(run, out=self.root, engine=self.engine, workers=self.workers)
        experiments = [self.space.experiment(values, seed, tested=True) for seed in self.fresh_seeds(count)]
        return [run_or_tell(one, self.root, partial(start, one), tell) for one in experiments]

    def _try(self, study: optuna.Study, left: int | None, ended: Sequence[Trial]) -> bool:
        """Do one trial, or what is left of one that was cut off; tell whether there are rounds for another.

        Rounds that a trial with the same settings has used are there already, and use none.
        """
        state = import_optuna().trial.TrialState
        trial = next_trial(study, self.space)
        values = values_of(trial, self.space)
        experiment = self._experiment(values)
        for name, value in {"values": values, "key": experiment.key}.items():
            trial.set_user_attr(name, value)
        if left is not None:
            left += max((one.rounds for one in ended if one.key == experiment.key), default=0)
        follow = _Follower(trial, experiment.algorithm.headline, experiment.rounds, left)
        before = stand(experiment, self.folder)
        try:
            for record in before.run.rounds if before.run else ():
                follow(record)
            if before.left:
                run(
                    experiment,
                    out=self.folder,
                    engine=self.engine,
                    workers=self.workers,
                    watch=lambda round: follow(round.record),
                )
            elif before.state == "damaged":
                raise ValueError(before.reason)
            elif before.state == "diverged":
                raise Diverged(before.reason)
            else:
                tidy(self.folder / experiment.key)  # the search was killed after its last round
        except _UsedUp:
            self._end(trial, follow)  # it stays a running one, as if it had been interrupted
            return False
        except _Stop:
            self._end(trial, follow)
            study.tell(trial, state=state.PRUNED)
        except Diverged as error:
            trial.set_user_attr("diverged", str(error))
            self._end(trial, follow)
            study.tell(trial, 0.0)  # nothing is worse, so that the search keeps away from there
        else:
            self._end(trial, follow)
            study.tell(trial, follow.best)
        return True

    def _end(self, trial: optuna.Trial, follow: _Follower) -> None:
        trial.set_user_attr("rounds", follow.rounds)
        trial.set_user_attr("best", follow.best)

    def _experiment(self, values: Mapping[str, Any]) -> Any:
        return self.space.experiment(values, tested=False)

    def _first_values(self) -> dict[str, Any]:
        return {name: one.at(0.0) for name, one in self.space.dimensions.items()}


class _Follower:
    """Tells Optuna of a trial's rounds, and stops the trial when it falls behind."""

    def __init__(self, trial: optuna.Trial, headline: str, rounds: int, left: int | None) -> None:
        self._trial, self._headline, self._whole, self._left = trial, headline, rounds, left
        state = trial.study.get_trials(deepcopy=False)[trial.number]
        self._known = set(state.intermediate_values)  # rounds that Optuna knows already
        self.rounds, self.best = 0, 0.0

    def __call__(self, record: RoundRecord) -> None:
        """Take in a round."""
        self.rounds = record.round
        found = record.validation.get(self._headline)
        if found is not None and record.evaluated == "all":
            self.best = max(self.best, found.mean)
            if record.round not in self._known:
                self._trial.report(found.mean, record.round)
            behind = record.round >= max(self._known, default=0) and self._trial.should_prune()
            if behind and record.round < self._whole:
                raise _Stop
        report(f"trial {self._trial.number}, rounds", record.round, self._whole)
        if self._left is not None and self._left <= record.round < self._whole:
            raise _UsedUp


def trials_of(study: optuna.Study) -> list[Trial]:
    """List the trials that have come to an end, or that were cut because the rounds were used up."""
    found = []
    states = {"COMPLETE": "complete", "RUNNING": CUT}
    for one in study.get_trials(deepcopy=False):
        attrs = one.user_attrs
        if "rounds" not in attrs:  # it was interrupted
            continue
        state = "diverged" if "diverged" in attrs else states.get(one.state.name, "stopped")
        best = None if state == "diverged" else attrs["best"]
        found.append(Trial(one.number, attrs["values"], attrs["key"], attrs["rounds"], best, state))
    return found


def used_rounds(trials: list[Trial]) -> int:
    """Count the rounds that trials have run; equal settings are run once."""
    runs: dict[str, int] = {}
    for one in trials:
        runs[one.key] = max(runs.get(one.key, 0), one.rounds)
    return sum(runs.values())


def best_trial(trials: list[Trial]) -> Trial | None:
    """Choose the trial with the highest validation accuracy among those run to their end; of equals the first."""
    whole = [one for one in trials if one.whole and one.validation is not None]
    return max(whole, key=lambda one: one.validation or 0.0, default=None)
