"""What commands that run experiments have in common."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from protonorm.cli.console import complain

if TYPE_CHECKING:
    from protonorm.analysis.comparison import Unread
    from protonorm.config.experiment import Experiment
    from protonorm.runs.run import Run
    from protonorm.trackers.tracker import Tracker


def check_engine(name: str | None, workers: int | None) -> None:
    """Refuse an engine that there is not, or one with so many processes, before anything begins."""
    from protonorm.engines.choice import check_workers, read_engine

    if name is not None:
        check_workers(read_engine(name), workers)


def run_for_table(
    experiment: Experiment,
    out: Path | None,
    engine: str | None,
    workers: int | None,
    tracker: Tracker | None,
    *,
    quiet: bool,
) -> Run | Unread:
    """Run one experiment; in a table, a run that diverged or that is damaged has a row too, and is complained of."""
    from protonorm.cli.progress import RoundDisplay
    from protonorm.runs.layout import runs_root
    from protonorm.session import running
    from protonorm.session.comparing import run_or_tell

    headline = experiment.algorithm.headline
    with RoundDisplay(experiment.key, experiment.rounds, headline, quiet=quiet) as display:
        start = partial(
            running.run, experiment, out=out, engine=engine, workers=workers, watch=display, tracker=tracker
        )
        return run_or_tell(experiment, runs_root(out), start, complain)
