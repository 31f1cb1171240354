"""Several methods with the same settings, run side by side: what the command `compare` does, from Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.local import Local
from protonorm.analysis.comparison import Unread
from protonorm.analysis.reading import UNREADABLE, read_whole, unread_reason
from protonorm.config.components import registered_name
from protonorm.config.experiment import Experiment
from protonorm.config.methods import is_method, read_method, read_seeds, tracker_of
from protonorm.config.parsing import assign, read_settings
from protonorm.core.algorithm import Algorithm
from protonorm.core.types import shown
from protonorm.errors import Diverged
from protonorm.runs.layout import INFO, runs_root
from protonorm.runs.reader import Run
from protonorm.session.comparison import Comparison
from protonorm.session.progress import Watch
from protonorm.session.running import run
from protonorm.trackers.tracker import Tracker, choose

Experiments = dict[str, list[Experiment]]  # of each method, one for each seed


def compare(
    *methods: str | Algorithm | type[Algorithm],
    out: str | Path | None = None,
    engine: str | None = None,
    workers: int | None = None,
    solo: bool = False,
    tracker: str | Tracker | Watch | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run several methods with the same settings, beside `local`, and put them side by side.

    A method is a name, perhaps with settings (`"protonorm:gamma=50"`, `"mine.py:Mine"`), or an object; words such as
    `"rounds=5"` and `"settings.yaml"` are settings too. `seeds=[0, 1, 2]` repeats. With `solo` each method is also run
    with every client federating with itself alone. A run that diverges or is damaged is told of, and has a row.
    """
    experiments = experiments_of(methods, settings)
    if solo:
        experiments = beside_controls(experiments, experiments_of(methods, settings | {"control": "solo"}))
    root = runs_root(Path(out) if out else None)
    follower = choose(tracker or tracker_of([one for one in methods if isinstance(one, str)]))
    start = partial(run, out=root, engine=engine, workers=workers, tracker=follower, progress=progress)
    found = {
        method: [run_or_tell(one, root, partial(start, one), _warn) for one in some]
        for method, some in experiments.items()
    }
    return Comparison(experiments, found)


def experiments_of(methods: Sequence[Any], given: Mapping[str, Any]) -> Experiments:
    """Make each method's experiments, one for each seed; `local` is always beside them."""
    named = [one for one in methods if not isinstance(one, str) or is_method(one)]
    settings = read_settings([one for one in methods if isinstance(one, str) and not is_method(one)])
    for name, value in given.items():
        if isinstance(value, str | Mapping) or "." in name:
            assign(settings, name, value)
        else:
            settings[name] = value
    settings.pop("tracker", None)
    if not named:
        raise ValueError(f"There is no method to compare; known: {', '.join(sorted(ALGORITHMS))}.")
    if "algorithm" in settings:
        raise ValueError("Give methods by themselves, such as pn.compare('protonorm:gamma=50'), not as algorithm=….")
    seeds = read_seeds(settings.pop("seeds", settings.pop("seed", 0)))
    found: Experiments = {}
    for name, method in _methods([*named, "local"]).items():
        found[name] = [Experiment.of(settings | {"algorithm": method, "seed": seed}) for seed in seeds]
    return found


def beside_controls(experiments: Experiments, controls: Experiments) -> Experiments:
    """Put each method's solo control after it; Local needs none, as nothing is exchanged in it."""
    if any(one.control == "solo" for some in experiments.values() for one in some):
        raise ValueError("control=solo is refused with --solo (solo=True), which runs each method with and without it.")
    found = {}
    for method, some in experiments.items():
        found[method] = some
        if not isinstance(some[0].algorithm, Local):
            found[f"{method} (solo)"] = controls[method]
    return found


def run_or_tell(
    experiment: Experiment, root: Path, attempt: Callable[[], object], tell: Callable[[str], None]
) -> Run | Unread:
    """Run an experiment by `attempt`, and read what is there; of one that diverged or is damaged say why, and go on."""
    folder, headline = root / experiment.key, experiment.algorithm.headline
    begun = os.path.lexists(folder / INFO)  # then its settings were good enough before, and only its files can be bad
    try:
        attempt()
    except Diverged as error:
        tell(str(error))
    except ValueError as error:
        if not begun:
            raise
        tell(str(error))
        return Unread(headline, str(error))
    except OSError:
        if not begun or _is_readable(folder):  # then it is the disk or another process, not the record
            raise
    try:
        return read_whole(folder, experiment.rounds)
    except UNREADABLE as error:
        tell(unread_reason(error, folder))
        return Unread(headline, unread_reason(error, folder))


def _is_readable(folder: Path) -> bool:
    try:
        read_whole(folder)
    except UNREADABLE:
        return False
    return True


def _methods(given: Sequence[Any]) -> dict[str, Any]:
    """Name the methods as a table does; of two objects of one class the second has a number."""
    found: dict[str, Any] = {}
    for one in given:
        if isinstance(one, str):
            found.setdefault(one, read_method(one))
            continue
        try:
            method = one() if isinstance(one, type) else one
        except TypeError:
            raise ValueError(f"{shown(one)} needs settings; give an object of it.") from None
        name = registered_name("algorithm", method) or type(method).__name__
        number = sum(key == name or key.startswith(f"{name} no. ") for key in found) + 1
        if method not in found.values():
            found[name if number == 1 else f"{name} no. {number}"] = method
    return found


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)
