"""Commands `run` and `compare`: one experiment, or several methods with the same settings."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, page_width, print_json, reporting, say
from protonorm.cli.options import (
    EngineName,
    Json,
    NoOwnCode,
    Out,
    Settings,
    SkipBad,
    Workers,
    path_option,
    with_skip_bad,
)
from protonorm.cli.progress import RoundDisplay
from protonorm.core.text import visible
from protonorm.errors import Failed

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment

Methods = Annotated[
    list[str],
    typer.Argument(
        metavar="METHOD_OR_SETTING", help="Methods as name, name:field=value,… or file.py:Class; then settings."
    ),
]
Figures = Annotated[Path | None, path_option("Folder for figures and report; <runs>/comparisons/… if not given.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print a line for each method, rule and seed, as CSV.")]
Latex = Annotated[Path | None, path_option("Write the table for a paper; - prints nothing else.", metavar="FILE")]
Markdown = Annotated[Path | None, path_option("Write the table in Markdown; - prints nothing else.", metavar="FILE")]
Solo = Annotated[
    bool, typer.Option("--solo", help="Run each method also with control=solo: the difference is due to the exchange.")
]
STDOUT = Path("-")
FORMS = {".tex": "LaTeX", ".md": "Markdown"}  # file formats of a table
HEAD = 200  # bytes at a file's beginning that are searched for its mark


def run(
    settings: Settings = None,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run one experiment; resume it if it was started, and show it if it is finished."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.analysis.breakdown import plain_run
        from protonorm.analysis.comparison import rows
        from protonorm.cli.run_tables import comparison_tables
        from protonorm.config.experiment import Experiment
        from protonorm.config.parsing import read_settings
        from protonorm.session.running import run as run_experiment
        from protonorm.trackers.tracker import choose

        given = read_settings(with_skip_bad(settings, skip_bad))
        tracker = choose(given.pop("tracker", None))  # fail before anything starts
        experiment = Experiment.of(given)
        with follow(experiment, quiet=as_json) as display:
            record = run_experiment(
                experiment, out=out, engine=engine, workers=workers, watch=display, tracker=tracker
            ).run
        if as_json:
            print_json(plain_run(record))
        else:
            table = rows({record.info.experiment.algorithm.name: [record]})
            say(comparison_tables(record.info.key, table, page_width())[0])
            say(f"Record: {visible(str(record.folder))}")


def compare(
    words: Methods,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    figures: Figures = None,
    solo: Solo = False,
    skip_bad: SkipBad = False,
    as_json: Json = False,
    as_csv: Csv = False,
    latex: Latex = None,
    markdown: Markdown = None,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run several methods with the same settings and compare them, with `local` and `majority` as references."""
    printed = [as_json, as_csv, latex == STDOUT, markdown == STDOUT]
    quiet = any(printed)
    with reporting(quiet=quiet, no_own_code=no_own_code):
        from protonorm.engines.choice import check_engine
        from protonorm.files import make_folder, replace
        from protonorm.session.comparing import Plan
        from protonorm.session.comparison import refuse_to_overwrite

        if sum(printed) > 1:
            raise ValueError("One of --json, --csv, --latex - and --markdown - can be printed, not several.")
        files = {ending: path for ending, path in ((".tex", latex), (".md", markdown)) if path and path != STDOUT}
        refuse_files(files)
        check_engine(engine, workers)
        plan = Plan.of(with_skip_bad(words, skip_bad), {}, solo=solo, out=out)
        folder = figures or plan.root / "comparisons" / plan.key
        refuse_to_overwrite(folder)
        comparison = plan.run(engine=engine, workers=workers, follow=partial(follow, quiet=quiet), tell=complain)
        *drawn, page = comparison.draw(folder)
        for ending, path in files.items():
            make_folder(path.parent)
            replace(path, (comparison.latex() if ending == ".tex" else comparison.markdown()).encode())
        if as_json:
            places = {"figures": list(map(str, drawn)), "report": str(page), "tables": list(map(str, files.values()))}
            print_json(comparison.plain() | places)
        elif as_csv:
            sys.stdout.write(comparison.csv())
        elif quiet:
            sys.stdout.write(comparison.latex() if latex == STDOUT else comparison.markdown())
        else:
            from protonorm.cli.run_tables import comparison_tables

            for table in comparison_tables(comparison.title, comparison.rows, page_width()):
                say(table)
            say(visible(f"Figures: {', '.join(map(str, drawn))}"))
            say(visible(f"Report: {page}"))
            for path in files.values():
                say(visible(f"Table: {path}"))
        if not any(run.finished for some in comparison.runs.values() for run in some):
            raise Failed("No run of this comparison came to its end.")


def follow(experiment: Experiment, *, quiet: bool = False) -> RoundDisplay:
    """Show the rounds of an experiment while it runs."""
    return RoundDisplay(experiment.key, experiment.rounds, experiment.algorithm.headline, quiet=quiet)


def refuse_files(files: dict[str, Path]) -> None:
    """Raise a ValueError, before any run starts, for a wrong suffix or a file that protonorm did not write."""
    from protonorm.analysis.tables import MARK

    for ending, path in files.items():
        if path.suffix.lower() != ending:
            raise ValueError(f"{path} must end in {ending}, as a table in {FORMS[ending]}.")
        if os.path.lexists(path) and not (path.is_file() and MARK.encode() in read_head(path, HEAD)):
            raise ValueError(f"{path} exists and is not a table of protonorm; it is left as it is. Give another name.")


def read_head(path: Path, size: int) -> bytes:
    """Read the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(size)
