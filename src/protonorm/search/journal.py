"""The file of a search: Optuna's journal, lines of JSON, from which it goes on after it was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from protonorm.files import PRIVATE_FILE, cut, damaged, make_folder, open_private
from protonorm.search.space import Range, Space

if TYPE_CHECKING:
    import optuna

JOURNAL, LOCK = "journal.jsonl", "lock"
FIRST = 5  # trials that are spread evenly over the space, before any is drawn by what was found
UNPRUNED = 3  # trials that are run to their end before any is stopped
WARM_UP = 0.2  # share of the rounds before a trial is judged


class Unlocked:
    """The lock that Optuna asks for; the one on the search's folder keeps all others out already."""

    def acquire(self) -> bool:
        """Do nothing."""
        return True

    def release(self) -> None:
        """Do nothing."""


def import_optuna() -> Any:
    """Import Optuna, or say what to install."""
    try:
        import optuna
    except ImportError:
        raise ValueError(
            "`protonorm tune` needs Optuna, which is not installed: pip install 'protonorm[tune]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def open_study(folder: Path, space: Space, rounds: int) -> Iterator[optuna.Study]:
    """Open the search in a folder, or begin it; one process at a time can have it."""
    optuna = import_optuna()
    make_folder(folder)
    lock = FileLock(folder / LOCK, mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"Another process is at work on {folder}; wait for it, or stop it.") from None
    try:
        yield _load(optuna, folder / JOURNAL, space, rounds)
    finally:
        lock.release()


def _load(optuna: Any, path: Path, space: Space, rounds: int) -> Any:
    """Read the journal without the line that a kill has left unfinished."""
    open_private(path, "ab").close()
    cut(path, path.read_bytes().rfind(b"\n") + 1)
    backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=Unlocked())
    pruner = optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED, n_warmup_steps=int(np.ceil(WARM_UP * rounds)))
    try:
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),  # a file's has no snapshots, which would be pickled
            study_name=space.name,
            direction="maximize",
            pruner=pruner,
            load_if_exists=True,
        )
        spread(study, space)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
        raise damaged(path, f"it is not the journal of a search ({type(error).__name__})") from error
    return study


def spread(study: optuna.Study, space: Space) -> None:
    """Line up the first trials, spread evenly over the space: those that are not lined up yet."""
    known = len(study.get_trials(deepcopy=False))
    if known >= FIRST:
        return
    shares = evenly(FIRST, len(space.dimensions), space.seed)
    for row in shares[known:].tolist():
        values = {name: one.at(share) for (name, one), share in zip(space.dimensions.items(), row, strict=True)}
        study.enqueue_trial({name: _told(space, name, value) for name, value in values.items()})


def evenly(count: int, width: int, seed: int) -> NDArray[np.float64]:
    """Spread points (count, width) over the unit cube: steps of 1/φ, 1/φ², … modulo 1, with φ^(width + 1) = φ + 1."""
    root = 1.0
    for _ in range(64):
        root = (1 + root) ** (1 / (width + 1))
    begin = np.random.default_rng(seed).random(width)
    return np.asarray((begin + np.arange(count)[:, None] * root ** -np.arange(1.0, width + 1)) % 1)


def next_trial(study: optuna.Study, space: Space) -> optuna.Trial:
    """Give the trial that a kill has cut off, or a new one. What it tries depends on those before it alone."""
    optuna = import_optuna()
    state = optuna.trial.TrialState
    known = study.get_trials(deepcopy=False)
    running = [one for one in known if one.state == state.RUNNING]
    number = running[0].number if running else sum(one.state != state.WAITING for one in known)
    word = int(np.random.SeedSequence([space.seed, number]).generate_state(1)[0])
    study.sampler = optuna.samplers.TPESampler(seed=word, n_startup_trials=FIRST)
    return optuna.Trial(study, running[0]._trial_id) if running else study.ask()


def values_of(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Ask for a value of each searched setting."""
    found: dict[str, Any] = {}
    for name, one in space.dimensions.items():
        if not isinstance(one, Range):
            found[name] = one.values[trial.suggest_categorical(name, list(range(len(one.values))))]
        elif one.whole:
            found[name] = trial.suggest_int(name, int(one.low), int(one.high), log=one.log)
        else:
            found[name] = one.fitted(trial.suggest_float(name, one.low, one.high, log=one.log))
    return found


def _told(space: Space, name: str, value: Any) -> Any:
    """Write a value as Optuna knows it: a choice by its number."""
    one = space.dimensions[name]
    return value if isinstance(one, Range) else one.values.index(value)
