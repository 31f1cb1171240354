"""The command `compare`: several methods with the same settings, side by side."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, Out, Workers
from protonorm.errors import Diverged

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment
    from protonorm.runs.reader import Run
    from protonorm.trackers.tracker import Tracker

Methods = Annotated[
    list[str],
    typer.Argument(
        metavar="METHOD_OR_SETTING",
        help="Methods, each name, name:field=value,… or file.py:Class; then settings for all; seeds=0,1,2 repeats.",
    ),
]
Figures = Annotated[Path | None, typer.Option(help="Folder for figures and report; <runs>/comparisons/… if not given.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]


def compare(
    words: Methods,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    figures: Figures = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Run several methods with the same settings and put them side by side, with `local` and `majority`."""
    quiet = as_json or as_csv
    with reporting(quiet=quiet):
        from protonorm.analysis.comparison import csv_text, rows
        from protonorm.analysis.summaries import headline, plain_run
        from protonorm.cli.run_tables import comparison_table
        from protonorm.config.methods import experiments_of, tracker_of
        from protonorm.report.page import write_page
        from protonorm.runs.layout import runs_root
        from protonorm.trackers.tracker import choose

        tracker = choose(tracker_of(words))
        runs = {
            method: [_run(one, out, engine, workers, tracker, quiet=quiet) for one in experiments]
            for method, experiments in experiments_of(words).items()
        }
        table = rows(runs)
        folder = figures or comparison_folder(runs, runs_root(out))
        drawn = draw_comparison(runs, folder)
        page = write_page(runs, folder / "report.html")
        if as_json:
            listed = {method: [plain_run(run) for run in found] for method, found in runs.items()}
            files = {"figures": list(map(str, drawn)), "report": str(page)}
            print_json({"rows": [row.plain() for row in table], "runs": listed, **files})
        elif as_csv:
            sys.stdout.write(csv_text(table))
        else:
            say(comparison_table(headline(runs), table))
            say(f"Figures: {', '.join(map(str, drawn))}")
            say(f"Report: {page}")


def comparison_folder(runs: Mapping[str, Sequence[Run]], root: Path) -> Path:
    """Say where the figures and the report of a comparison go."""
    keys = "\n".join(run.info.key for found in runs.values() for run in found)
    return root / "comparisons" / hashlib.sha256(keys.encode()).hexdigest()[:10]


def draw_comparison(runs: Mapping[str, Sequence[Run]], folder: Path) -> list[Path]:
    """Write the figures of a comparison: accuracy over rounds, and who holds what."""
    from protonorm.report.figures import accuracy_curves, heat_map, save_figure  # slow to import

    first = next(iter(runs.values()))[0]
    return [
        save_figure(accuracy_curves(runs), folder / "accuracy.png"),
        save_figure(heat_map(first), folder / "partition.png"),
    ]


def _run(
    experiment: Experiment,
    out: Path | None,
    engine: str | None,
    workers: int | None,
    tracker: Tracker | None,
    *,
    quiet: bool,
) -> Run:
    """Run one experiment and show its rounds; in a table, a run that diverged is a result too."""
    from protonorm.cli.progress import RoundDisplay
    from protonorm.runs.layout import runs_root
    from protonorm.runs.reader import read_run
    from protonorm.session.running import run

    with RoundDisplay(experiment.key, experiment.rounds, experiment.algorithm.headline, quiet=quiet) as display:
        try:
            return run(experiment, out=out, engine=engine, workers=workers, watch=display, tracker=tracker).run
        except Diverged as error:
            complain(str(error))
            return read_run(runs_root(out) / experiment.key)
