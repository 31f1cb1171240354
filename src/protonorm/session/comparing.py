"""Several methods with the same settings, run side by side: what the command `compare` does, from Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from protonorm.analysis.comparison import Unread
from protonorm.analysis.reading import UNREADABLE, read_whole, unread_reason
from protonorm.config.experiment import Experiment
from protonorm.config.methods import beside_controls, experiments_of, tracker_of
from protonorm.core.algorithm import Algorithm
from protonorm.core.own_failures import runtime_failure
from protonorm.errors import Diverged
from protonorm.runs.layout import INFO, runs_root
from protonorm.runs.run import Run
from protonorm.session.comparison import Comparison
from protonorm.session.progress import Watch, reading_line
from protonorm.session.running import check_engine, run
from protonorm.trackers.tracker import Tracker, choose


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
    All other keywords are those of `run`, and settings of an `Experiment`.

    ```python
    import protonorm as pn

    small = {"dataset": {"name": "spiral", "points": 50}, "clients": 4, "rounds": 2}
    comparison = pn.compare("protonorm:gamma=10", pn.FedProto(lam=0.5), seeds=[0, 1], **small)
    print(comparison.frame()[["method", "rule", "accuracy"]])
    ```
    """
    with reading_line(progress):
        experiments = experiments_of(methods, settings)
        if solo:
            experiments = beside_controls(experiments, experiments_of(methods, settings | {"control": "solo"}))
        check_engine(engine, workers)  # before any run: what it refuses is no damage
        root = runs_root(Path(out) if out else None)
        follower = choose(tracker or tracker_of(methods))
        start = partial(run, out=root, engine=engine, workers=workers, tracker=follower, progress=progress)
        found = {
            method: [run_or_tell(one, root, partial(start, one), _warn) for one in some]
            for method, some in experiments.items()
        }
    return Comparison(experiments, found)


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
        if not begun or runtime_failure(error):  # the settings, or a user's own file
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


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)
