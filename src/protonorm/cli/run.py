"""The command `run`: one experiment."""

from __future__ import annotations

from typing import Annotated

import typer

from protonorm.cli.console import page_width, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, NoOwnCode, Out, SkipBad, Workers, with_skip_bad
from protonorm.core.text import visible

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTINGS",
        help="A YAML file and/or key=value, such as algorithm.gamma=200 rounds=50 tracker=tensorboard.",
    ),
]


def run(
    settings: Words = None,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run one experiment; resume it if it was begun, show it if it is done."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.analysis.comparison import rows
        from protonorm.analysis.summaries import plain_run
        from protonorm.cli.progress import RoundDisplay
        from protonorm.cli.run_tables import comparison_tables
        from protonorm.config.experiment import Experiment
        from protonorm.config.parsing import read_settings
        from protonorm.session.running import run as run_experiment
        from protonorm.trackers.tracker import choose

        given = read_settings(with_skip_bad(settings, skip_bad))
        tracker = choose(given.pop("tracker", None))  # refused before anything begins
        experiment = Experiment.of(given)
        with RoundDisplay(experiment.key, experiment.rounds, experiment.algorithm.headline, quiet=as_json) as display:
            found = run_experiment(
                experiment, out=out, engine=engine, workers=workers, watch=display, tracker=tracker
            ).run
        if as_json:
            print_json(plain_run(found))
        else:
            table = rows({found.info.experiment.algorithm.name: [found]})
            say(comparison_tables(found.info.key, table, page_width())[0])
            say(f"Record: {visible(str(found.folder))}")
