"""Load the result of a run that is there, whatever made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protonorm.runs.layout import find_run, runs_root
from protonorm.runs.reader import read_run
from protonorm.session.rebuild import experiment_of
from protonorm.session.result import Result


def load_run(run: str | Path, *, out: str | Path | None = None, **settings: Any) -> Result:
    """Load a run by its folder, its name, or the beginning of its name under `out`; no data are needed.

    Data and code of one's own, of which the record holds no more than the name, can be given as settings, as to an
    Experiment: dataset="clients:partners", models=[small, large]. They are compared with the record. A name that no
    run has, or that several begin with, raises a ValueError that lists those there are.
    """
    found = read_run(find_run(runs_root(Path(out) if out else None), str(Path(run).expanduser())))
    return Result(experiment_of(found, settings) if settings else None, found)
