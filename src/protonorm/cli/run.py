"""Commands `run` and `compare`: one experiment, or several methods with the same settings."""

import io
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
    Quiet,
    Settings,
    SkipBad,
    Workers,
    path_option,
    read_path,
    with_skip_bad,
)
from protonorm.cli.progress import RoundDisplay
from protonorm.core.text import visible
from protonorm.errors import Failed

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment

METHODS = "Methods as name, name:field=value,… or file.py:Class; then settings."
Methods = Annotated[list[str], typer.Argument(metavar="METHOD_OR_SETTING", help=METHODS)]
Owned = Annotated[
    Path, typer.Argument(parser=read_path, metavar="DATA", help="Folder with a folder or an .npz file for each client.")
]
Figures = Annotated[Path | None, path_option("Folder for figures and report; <runs>/comparisons/… if not given.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print a line for each method, rule and seed, as CSV.")]
Latex = Annotated[Path | None, path_option("Write the table for a paper; - prints nothing else.", metavar="FILE")]
Markdown = Annotated[Path | None, path_option("Write the table in Markdown; - prints nothing else.", metavar="FILE")]
SOLO = "Run each method also with control=solo: the difference is due to the exchange."
Solo = Annotated[bool, typer.Option("--solo", help=SOLO)]
STDOUT = Path("-")
FORMS = {".tex": "LaTeX", ".md": "Markdown"}  # file formats of a table
HEAD = 200  # bytes at a file's beginning that are searched for its mark


def run(
    settings: Settings = None,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    skip_bad: SkipBad = False,
    quiet: Quiet = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run one experiment; resume it if it was started, and show it if it is finished.

    Frequent settings: dataset=spiral partition.alpha=0.1 models=light clients=20 rounds=50 epochs=1 lr=0.01 seed=0.
    `protonorm list settings` explains all of them, `protonorm list protonorm` those of a method.
    """
    with reporting(quiet=as_json or quiet, no_own_code=no_own_code):
        from protonorm.analysis.breakdown import headline, plain_run
        from protonorm.analysis.comparison import rows
        from protonorm.cli.run_tables import comparison_tables, seeds_text
        from protonorm.config.experiment import Experiment
        from protonorm.config.methods import read_experiment
        from protonorm.session.running import run as run_experiment
        from protonorm.trackers.tracker import choose

        settings_given = read_experiment(with_skip_bad(settings, skip_bad))
        tracker = choose(settings_given.pop("tracker", None))  # fail before anything starts
        experiment = Experiment.of(settings_given)
        with follow(experiment, quiet=as_json or quiet) as display:
            record = run_experiment(
                experiment, out=out, engine=engine, workers=workers, watch=display, tracker=tracker
            ).run
        if as_json:
            print_json(plain_run(record))
            return
        runs = {record.info.experiment.algorithm.name: [record]}
        title = f"{headline(runs)}, {seeds_text([experiment.seed])}"
        say(comparison_tables(title, rows(runs), page_width())[0], captions=not quiet)
        if not quiet:
            say(f"Record: {visible(str(record.folder))}")


def compare(
    words: Methods,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    figures: Figures = None,
    solo: Solo = False,
    skip_bad: SkipBad = False,
    quiet: Quiet = False,
    as_json: Json = False,
    as_csv: Csv = False,
    latex: Latex = None,
    markdown: Markdown = None,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run several methods with the same settings and compare them, with `local` and `majority` as references.

    `seeds=3` repeats each with the seeds 0, 1 and 2. `protonorm list settings` explains the settings.
    """
    printed = [as_json, as_csv, latex == STDOUT, markdown == STDOUT]
    silent = quiet or any(printed)
    with reporting(quiet=silent, no_own_code=no_own_code):
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
        comparison = plan.run(engine=engine, workers=workers, follow=partial(follow, quiet=silent), notify=complain)
        *drawn, page = comparison.draw(folder)
        for ending, path in files.items():
            make_folder(path.parent)
            replace(path, (comparison.latex(Path(path).stem) if ending == ".tex" else comparison.markdown()).encode())
        if as_json:
            paths = {"figures": list(map(str, drawn)), "report": str(page), "tables": list(map(str, files.values()))}
            print_json(comparison.plain() | paths)
        elif as_csv:
            sys.stdout.write(comparison.csv())
        elif any(printed):
            sys.stdout.write(comparison.latex() if latex == STDOUT else comparison.markdown())
        else:
            from protonorm.cli.run_tables import comparison_tables, seeds_text

            seeds = seeds_text([run.info.experiment.seed for group in comparison.runs.values() for run in group])
            title = f"{comparison.title}{seeds and f', {seeds}'}"
            for table in comparison_tables(title, comparison.rows, page_width()):
                say(table, captions=not quiet)
            lines = [f"Figures: {', '.join(map(str, drawn))}", f"Report: {page}"]
            for line in [] if quiet else [*lines, *(f"Table: {path}" for path in files.values())]:
                say(visible(line))
        if not any(run.finished for runs in comparison.runs.values() for run in runs):
            raise Failed("No run of this comparison came to its end.")


def pilot(
    data: Owned,
    settings: Settings = None,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    quiet: Quiet = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Try on data of clients whether federating pays, what would be sent, and what it costs, in three sentences.

    Methods, such as choir and duet, and settings, such as models=frozen:efficientnet_lite0 rounds=5, may be given.
    """
    with reporting(quiet=quiet, no_own_code=no_own_code):
        from protonorm.config.parsing import is_method
        from protonorm.session.pilot import pilot as try_methods

        words = settings or []
        methods, others = ([word for word in words if is_method(word) == as_method] for as_method in (True, False))
        shown = partial(follow, quiet=quiet)
        result = try_methods(
            data, others, methods=methods, out=out, engine=engine, workers=workers, follow=shown, notify=complain
        )
        comparison = result.comparison
        page = comparison.page(comparison.plan.root / "comparisons" / f"pilot-{comparison.key}.html")
        for sentence in result.sentences:
            say(visible(sentence))
        if not quiet:
            say(f"Report: {visible(str(page))}")


def follow(experiment: "Experiment", *, quiet: bool = False) -> RoundDisplay:
    """Show the rounds of an experiment while it runs."""
    return RoundDisplay(experiment.key, experiment.rounds, experiment.algorithm.headline, quiet=quiet)


def refuse_files(files: dict[str, Path]) -> None:
    """Raise a ValueError, before any run starts, for a wrong suffix or a file that protonorm did not write."""
    from protonorm.analysis.tables import MARK

    for ending, path in files.items():
        if path.suffix.lower() != ending:
            raise ValueError(f"{path} must end in {ending}, as a table in {FORMS[ending]}.")
        if not os.path.lexists(path):
            continue
        with path.open("rb") if path.is_file() else io.BytesIO() as file:
            marked = MARK.encode() in file.read(HEAD)
        if not marked:
            raise ValueError(f"{path} exists and is not a table of protonorm; it is left as it is. Give another name.")
