"""Run an experiment for a table of several: what goes wrong with one run is a note in its row, not the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from protonorm.cli.console import complain
from protonorm.errors import Diverged

if TYPE_CHECKING:
    from protonorm.analysis.comparison import Unread
    from protonorm.config.experiment import Experiment
    from protonorm.runs.reader import Run
    from protonorm.trackers.tracker import Tracker


def run_for_table(
    experiment: Experiment,
    out: Path | None,
    engine: str | None,
    workers: int | None,
    tracker: Tracker | None,
    *,
    quiet: bool,
) -> Run | Unread:
    """Run one experiment and show its rounds; in a table, a run that diverged or that is damaged has a row too."""
    from protonorm.analysis.comparison import Unread
    from protonorm.analysis.reading import UNREADABLE, read_whole, unread_reason
    from protonorm.cli.progress import RoundDisplay
    from protonorm.runs.layout import INFO, runs_root
    from protonorm.session.running import run

    folder, headline = runs_root(out) / experiment.key, experiment.algorithm.headline
    begun = os.path.lexists(folder / INFO)  # then its settings were good enough before, and only its files can be bad
    with RoundDisplay(experiment.key, experiment.rounds, headline, quiet=quiet) as display:
        try:
            run(experiment, out=out, engine=engine, workers=workers, watch=display, tracker=tracker)
        except Diverged as error:
            complain(str(error))
        except ValueError as error:
            if not begun:
                raise
            complain(str(error))
            return Unread(headline, str(error))
        except OSError:
            if not begun or _is_readable(folder):  # then it is the disk or another process, not the record
                raise
    try:
        return read_whole(folder, experiment.rounds)
    except UNREADABLE as error:
        complain(unread_reason(error, folder))
        return Unread(headline, unread_reason(error, folder))


def _is_readable(folder: Path) -> bool:
    from protonorm.analysis.reading import UNREADABLE, read_whole

    try:
        read_whole(folder)
    except UNREADABLE:
        return False
    return True
