"""Hyperparameter search: trials with early pruning, selected by validation accuracy.

Each trial is a run in the search's folder, evaluated only on the validation parts. The folder also holds Optuna's
journal, in JSON lines. An interrupted search is resumed from its last round by the same command, with the same trials
as an uninterrupted search.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protonorm.config.experiment import Experiment
from protonorm.core.progress import report
from protonorm.errors import Diverged
from protonorm.files import cut, damaged, make_folder, open_private
from protonorm.runs.layout import BUSY, locked
from protonorm.runs.schema import RoundRecord
from protonorm.search.space import Range, Space
from protonorm.search.sweeping import stand
from protonorm.session.comparing import run_or_report
from protonorm.session.running import run, tidy

if TYPE_CHECKING:
    import optuna

    from protonorm.analysis.comparison import Unread
    from protonorm.runs.run import Run

FOLDER = "searches"  # under the root folder of runs
JOURNAL = "journal.jsonl"
FIRST = 5  # trials spread evenly over the space before the sampler uses results
UNPRUNED = 3  # trials run to completion before any is pruned
WARM_UP = 0.2  # share of the rounds before a trial can be pruned
FRESH = 3  # seeds for the final runs of the best settings
CUT = "cut"  # state of a trial that exhausted the budget of rounds


class _Ends(Exception):
    """Signal that ends a trial's run in the given state of Optuna."""


@dataclass(frozen=True)
class Trial:
    """Result of a trial."""

    number: int
    values: dict[str, Any]  # by searched setting
    key: str  # key of its run
    rounds: int  # finished rounds
    validation: float | None  # best validation accuracy so far; None if it diverged
    state: str  # complete, stopped, diverged, or cut (resumed with a larger budget)


def import_optuna() -> Any:
    """Import Optuna; raise a ValueError with the install command if it is missing."""
    try:
        import optuna
    except ImportError:
        advice = "pip install '.[tune]' in a checkout."
        raise ValueError(f"`protonorm tune` needs Optuna, which is not installed: {advice}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True)
class Search:
    """Hyperparameter search over a space, with the root folder of its runs."""

    space: Space
    root: Path
    engine: str | None = None
    workers: int | None = None

    @property
    def folder(self) -> Path:
        """Folder of this search, with its journal and the runs of its trials."""
        return self.root / FOLDER / self.space.name

    def run(self, trials: int, budget: int | None = None, notify: Callable[[Trial], None] | None = None) -> list[Trial]:
        """Run trials until there are `trials` in total or `budget` rounds are used; return all trials."""
        rounds = self.space.experiment(self.space.first, tested=False).rounds
        with open_study(self.folder, self.space, rounds) as study:
            while True:
                ended = [trial for trial in trials_of(study) if trial.state != CUT]
                left = None if budget is None else budget - used_rounds(ended)
                report("trials", len(ended), trials)
                if len(ended) >= trials or (left is not None and left <= 0):
                    return trials_of(study)
                self._try(study, left, ended)
                *_, last = trials_of(study)
                if notify:
                    notify(last)
                if last.state == CUT:
                    return trials_of(study)

    def fresh_seeds(self, count: int = FRESH) -> range:
        """Return seeds that the search has not used."""
        return range(self.space.seed + 1, self.space.seed + 1 + count)

    def confirm(
        self, values: Mapping[str, Any], count: int = FRESH, notify: Callable[[str], None] | None = None
    ) -> "list[Run | Unread]":
        """Run and test the given values with fresh seeds; report diverged and damaged runs to `notify` and continue."""
        start = partial(run, out=self.root, engine=self.engine, workers=self.workers)
        experiments = [self.space.experiment(values, seed, tested=True) for seed in self.fresh_seeds(count)]
        return [run_or_report(experiment, self.root, partial(start, experiment), notify) for experiment in experiments]

    def _try(self, study: "optuna.Study", left: int | None, ended: Sequence[Trial]) -> None:
        """Run a trial, or the remaining rounds of an interrupted one.

        Rounds of an earlier trial with the same settings are reused and do not count against the budget.
        """
        trial = next_trial(study, self.space)
        values = values_of(trial, self.space)
        experiment = self.space.experiment(values, tested=False)
        if left is not None:
            left += max((other.rounds for other in ended if other.key == experiment.key), default=0)
        follow = _Follower(trial, experiment.algorithm.headline, experiment.rounds, left)
        state, value, attributes = "COMPLETE", None, {"values": values, "key": experiment.key}
        try:
            self._run(experiment, follow)
            value = follow.best
        except _Ends as signal:
            state = str(signal)
        except Diverged as error:
            value, attributes["diverged"] = 0.0, str(error)  # the worst value, so that the sampler avoids this region
        for name, attribute in (attributes | {"best": follow.best, "rounds": follow.rounds}).items():
            trial.set_user_attr(name, attribute)
        if state != "RUNNING":
            study.tell(trial, value, import_optuna().trial.TrialState[state])

    def _run(self, experiment: Experiment, follow: "_Follower") -> None:
        """Replay the recorded rounds of a run, then run the remaining ones."""
        state, recorded, reason = stand(experiment, self.folder)
        for record in recorded.rounds if recorded else ():
            follow(record)
        if state == "damaged":
            raise ValueError(reason)
        if state == "diverged":
            raise Diverged(reason)
        if state == "done":
            tidy(self.folder / experiment.key)  # the search may have been killed after the last round
            return
        out, engine, workers = self.folder, self.engine, self.workers
        run(experiment, out=out, engine=engine, workers=workers, watch=lambda round: follow(round.record))


class _Follower:
    """Listener that reports a trial's rounds to Optuna and raises to prune the trial or to end its budget."""

    def __init__(self, trial: "optuna.Trial", headline: str, rounds: int, left: int | None) -> None:
        self._trial, self._headline, self._total, self._left = trial, headline, rounds, left
        frozen = trial.study.get_trials(deepcopy=False)[trial.number]
        self._known = set(frozen.intermediate_values)  # rounds reported before
        self.rounds, self.best = 0, 0.0

    def __call__(self, record: RoundRecord) -> None:
        """Process a round."""
        self.rounds = record.round
        accuracy = record.validation.get(self._headline)
        if accuracy is not None and record.evaluated == "all":
            self.best = max(self.best, accuracy.mean)
            if record.round not in self._known:
                self._trial.report(accuracy.mean, record.round)
            behind = record.round >= max(self._known, default=0) and self._trial.should_prune()
            if behind and record.round < self._total:
                raise _Ends("PRUNED")
        report(f"trial {self._trial.number}, rounds", record.round, self._total)
        if self._left is not None and self._left <= record.round < self._total:
            raise _Ends("RUNNING")  # out of budget: resumed later, like an interrupted trial


def trials_of(study: "optuna.Study") -> list[Trial]:
    """List the trials that have ended, or were cut by the budget of rounds."""
    trials, states = [], {"COMPLETE": "complete", "RUNNING": CUT}
    for trial in study.get_trials(deepcopy=False):
        attrs = trial.user_attrs
        if "rounds" in attrs:  # missing if interrupted
            state = "diverged" if "diverged" in attrs else states.get(trial.state.name, "stopped")
            best = None if state == "diverged" else attrs["best"]
            trials.append(Trial(trial.number, attrs["values"], attrs["key"], attrs["rounds"], best, state))
    return trials


def used_rounds(trials: list[Trial]) -> int:
    """Return the number of rounds that trials have used; trials with equal settings share a run."""
    return sum({trial.key: trial.rounds for trial in sorted(trials, key=lambda trial: trial.rounds)}.values())


def best_trial(trials: list[Trial]) -> Trial | None:
    """Return the complete trial with the highest validation accuracy; the first of ties."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: trial.validation or 0.0, default=None)


@contextmanager
def open_study(folder: Path, space: Space, rounds: int) -> "Iterator[optuna.Study]":
    """Open or create the study of a folder, locked by one process at a time."""
    optuna = import_optuna()
    make_folder(folder)
    path = folder / JOURNAL
    with locked(folder, BUSY) as lock:
        open_private(path, "ab").close()
        cut(path, path.read_bytes().rfind(b"\n") + 1)  # remove a line that a kill left incomplete
        backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=lock)
        try:
            study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),  # the file backend has no pickled snapshots
                study_name=space.name,
                direction="maximize",
                pruner=optuna.pruners.MedianPruner(UNPRUNED, n_warmup_steps=int(np.ceil(WARM_UP * rounds))),
                load_if_exists=True,
            )
            _spread(study, space)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
            raise damaged(path, f"it is not the journal of a search ({type(error).__name__})") from error
        yield study


def _spread(study: "optuna.Study", space: Space) -> None:
    """Enqueue the missing initial trials, spread evenly over the space."""
    count = len(study.get_trials(deepcopy=False))
    shares = evenly(max(FIRST, count), len(space.dimensions), space.seed)[count:]
    for row in shares.tolist():
        values = {}
        for (name, dimension), share in zip(space.dimensions.items(), row, strict=True):
            value = dimension.at(share)  # of a choice, Optuna stores the index
            values[name] = value if isinstance(dimension, Range) else dimension.values.index(value)
        study.enqueue_trial(values)


def evenly(count: int, width: int, seed: int) -> NDArray[np.float64]:
    """Spread points (count, width) over the unit cube: steps of 1/φ, 1/φ², … modulo 1, with φ^(width + 1) = φ + 1."""
    root = 1.0
    for _ in range(64):
        root = (1 + root) ** (1 / (width + 1))
    begin = np.random.default_rng(seed).random(width)
    return np.asarray((begin + np.arange(count)[:, None] * root ** -np.arange(1.0, width + 1)) % 1)


def next_trial(study: "optuna.Study", space: Space) -> "optuna.Trial":
    """Return the interrupted trial, or a new one; its values depend only on the previous trials."""
    optuna = import_optuna()
    state, trials = optuna.trial.TrialState, study.get_trials(deepcopy=False)
    running = [trial for trial in trials if trial.state == state.RUNNING]
    number = running[0].number if running else sum(trial.state != state.WAITING for trial in trials)
    seed = int(np.random.SeedSequence([space.seed, number]).generate_state(1)[0])
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST)
    return optuna.Trial(study, running[0]._trial_id) if running else study.ask()


def values_of(trial: "optuna.Trial", space: Space) -> dict[str, Any]:
    """Return the trial's suggested value of each searched setting."""
    values: dict[str, Any] = {}
    for name, dimension in space.dimensions.items():
        if not isinstance(dimension, Range):
            values[name] = dimension.values[trial.suggest_categorical(name, list(range(len(dimension.values))))]
        elif dimension.whole:
            values[name] = trial.suggest_int(name, int(dimension.low), int(dimension.high), log=dimension.log)
        else:
            values[name] = dimension.fitted(trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log))
    return values
