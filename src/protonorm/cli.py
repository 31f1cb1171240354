"""The command line. What a command does not need is not imported: --help and list do without torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm import __version__, cli_bench, cli_data, cli_models, cli_predict, cli_report, cli_reproduce
from protonorm.console import complain, print_json, reporting, say
from protonorm.errors import Diverged

if TYPE_CHECKING:
    from protonorm.experiment import Experiment
    from protonorm.history import Run
    from protonorm.trackers.tracker import Tracker

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federate different models on different data by sharing prototypes alone.",
)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SETTINGS]...",
        help="A YAML file and/or key=value, such as algorithm.gamma=200 rounds=50 tracker=tensorboard.",
    ),
]
Methods = Annotated[
    list[str],
    typer.Argument(
        metavar="ALGORITHM... [SETTINGS]...",
        help="Methods, each name, name:field=value,… or file.py:Class; then settings for all; seeds=0,1,2 repeats.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder of all runs; PROTONORM_RUNS or ./runs if not given.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="Where clients live: see `protonorm list engines`.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores if not given.")]
Figures = Annotated[Path | None, typer.Option(help="Folder for figures and report; <runs>/comparisons/… if not given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    models = "models"
    families = "families"
    datasets = "datasets"
    partitions = "partitions"
    engines = "engines"
    trackers = "trackers"


TABLES = {  # where the table of each kind is
    Kind.algorithms: ("protonorm.algorithms", "ALGORITHMS"),
    Kind.models: ("protonorm.models", "MODELS"),
    Kind.families: ("protonorm.models", "FAMILIES"),
    Kind.datasets: ("protonorm.data", "DATASETS"),
    Kind.partitions: ("protonorm.data", "PARTITIONS"),
    Kind.engines: ("protonorm.engines", "ENGINES"),
    Kind.trackers: ("protonorm.trackers", "TRACKERS"),
}


@app.command()
def run(
    settings: Words = None,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Run one experiment; resume it if it was begun, show it if it is done."""
    with reporting(quiet=as_json):
        from protonorm.configuration import read_settings
        from protonorm.display import plain_run, run_table
        from protonorm.experiment import Experiment
        from protonorm.trackers.tracker import choose

        given = read_settings(settings or [])
        tracker = choose(given.pop("tracker", None))  # refused before anything begins
        found = follow(Experiment.of(given), out, engine, workers, quiet=as_json, tracker=tracker)
        if as_json:
            print_json(plain_run(found))
        else:
            say(run_table(found))
            say(f"Record: {found.folder}")


@app.command()
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
        from protonorm.comparison import csv_text, rows
        from protonorm.display import comparison_folder, draw_comparison, headline, plain_run
        from protonorm.history import runs_root
        from protonorm.plan import plan, tracker
        from protonorm.report.page import write_page
        from protonorm.tables import comparison_table
        from protonorm.trackers.tracker import choose

        follower = choose(tracker(words))
        runs = {
            method: [
                follow(one, out, engine, workers, quiet=quiet, tracker=follower, may_diverge=True)
                for one in experiments
            ]
            for method, experiments in plan(words).items()
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


@app.command("list")
def list_(kind: Kind, as_json: Json = False) -> None:
    """List what can be chosen by name."""
    module, name = TABLES[kind]
    entries = getattr(import_module(module), name)
    if as_json:
        print_json({key: {"summary": entry.summary, **entry.details} for key, entry in entries.items()})
        return
    from protonorm.tables import entries_table

    say(entries_table(kind.value.capitalize(), entries))


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(help="A run's folder or name; all runs if not given.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show the runs in a folder, or one run."""
    with reporting():
        from protonorm.display import plain_run, run_lines, run_table
        from protonorm.history import find_run, find_runs, read_run, runs_root
        from protonorm.tables import runs_table

        root = runs_root(out)
        if run is None:
            runs = readable(find_runs(root))
            if as_json:
                print_json({"runs": [plain_run(one) for one in runs]})
            else:
                say(runs_table(runs) if runs else f"There are no runs in {root}.")
            return
        found = read_run(find_run(root, run))
        if as_json:
            print_json(plain_run(found) | {"history": found.history})
        else:
            say(run_table(found))
            say(run_lines(found))


app.command()(cli_bench.bench)
app.command()(cli_models.inspect)
app.command()(cli_predict.export)
app.command()(cli_predict.predict)
app.command()(cli_report.report)
app.command()(cli_reproduce.reproduce)
app.add_typer(cli_data.data, name="data")


def follow(
    experiment: Experiment,
    out: Path | None,
    engine: str | None,
    workers: int | None,
    *,
    quiet: bool,
    tracker: Tracker | None = None,
    may_diverge: bool = False,
) -> Run:
    """Run an experiment and tell of its rounds; in a table, a run that diverged is a result too."""
    from protonorm.history import read_run, runs_root
    from protonorm.progress import Teller
    from protonorm.session import run as run_experiment

    with Teller(experiment.key, experiment.rounds, experiment.algorithm.headline, quiet=quiet) as teller:
        options: dict[str, Any] = {"engine": engine, "workers": workers, "watch": teller, "tracker": tracker}
        try:
            return run_experiment(experiment, out=out, **options).run
        except Diverged as error:
            if not may_diverge:
                raise
            complain(str(error))
            return read_run(runs_root(out) / experiment.key)


def readable(folders: Sequence[Path]) -> list[Run]:
    """Read runs; of a damaged one say what is wrong, and go on."""
    from protonorm.history import read_run

    found = []
    for folder in folders:
        try:
            found.append(read_run(folder))
        except ValueError as error:
            complain(str(error))
    return found


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        sys.stdout.write(f"protonorm {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federate different models on different data by sharing prototypes alone."""


def main() -> None:
    """Run the command line."""
    app(prog_name="protonorm")
