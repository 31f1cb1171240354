"""The command line. What a command does not need is not imported: --help and list do without torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from protonorm import __version__
from protonorm.errors import Diverged, Failed

if TYPE_CHECKING:
    from protonorm.experiment import Experiment
    from protonorm.history import Run

REFUSED, FAILED, INTERRUPTED = 2, 1, 130  # exit codes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federate different models on different data by sharing prototypes alone.",
)

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SETTINGS]...", help="A YAML file and/or key=value, such as algorithm.gamma=200 rounds=50."),
]
Out = Annotated[Path | None, typer.Option(help="Folder of all runs; PROTONORM_RUNS or ./runs if not given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="Where clients live: see `protonorm list engines`.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores if not given.")]


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    engines = "engines"


TABLES = {  # where the table of each kind is
    Kind.algorithms: ("protonorm.algorithms", "ALGORITHMS"),
    Kind.models: ("protonorm.models", "MODELS"),
    Kind.datasets: ("protonorm.data", "DATASETS"),
    Kind.partitions: ("protonorm.data", "PARTITIONS"),
    Kind.engines: ("protonorm.engines", "ENGINES"),
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
    with reporting("the same command"):
        from protonorm.configuration import read_settings
        from protonorm.experiment import Experiment
        from protonorm.tables import comparison_table

        experiment = Experiment.of(read_settings(settings or []))
        found = _run(experiment, out, engine, workers, quiet=as_json)
        if as_json:
            print_json(_plain(found))
        else:
            from protonorm.comparison import rows

            Console().print(comparison_table(found.about["key"], rows({found.experiment["algorithm"]["name"]: [found]})))
            Console().print(f"Record: {found.folder}", highlight=False)


@app.command()
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ALGORITHM... [SETTINGS]...",
            help="Methods, each a name or name:field=value,…, then settings for all of them; seeds=0,1,2 repeats.",
        ),
    ],
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Run several methods with the same settings and put them side by side, with `local` and `majority`."""
    with reporting("the same command"):
        from protonorm.comparison import rows
        from protonorm.plan import plan
        from protonorm.tables import comparison_table

        runs: dict[str, list[Run]] = {}
        for title, experiments in plan(words).items():
            runs[title] = [_run_or_failure(one, out, engine, workers, quiet=as_json) for one in experiments]
        table = rows(runs)
        if as_json:
            listed = {title: [_plain(run) for run in found] for title, found in runs.items()}
            print_json({"rows": [row.plain() for row in table], "runs": listed})
        else:
            Console().print(comparison_table(_headline(runs), table))


@app.command("list")
def list_(kind: Kind, as_json: Json = False) -> None:
    """List what can be chosen by name."""
    module, name = TABLES[kind]
    entries = getattr(import_module(module), name)
    if as_json:
        print_json({key: {"summary": entry.summary, **entry.details} for key, entry in entries.items()})
        return
    from protonorm.tables import entries_table

    Console().print(entries_table(kind.value.capitalize(), entries))


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(help="A run's folder or name; all runs if not given.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show the runs in a folder, or one run."""
    with reporting("the same command"):
        from protonorm.comparison import rows
        from protonorm.history import find_runs, read_run, runs_root
        from protonorm.tables import comparison_table, runs_table

        root = runs_root(out)
        if run is None:
            runs = [read_run(folder) for folder in find_runs(root)]
            if as_json:
                print_json({"runs": [_plain(one) for one in runs]})
            elif runs:
                Console().print(runs_table(runs))
            else:
                Console().print(f"There are no runs in {root}.", highlight=False)
            return
        folder = Path(run) if (Path(run) / "experiment.json").exists() else root / run
        found = read_run(folder)
        if as_json:
            print_json(_plain(found) | {"history": found.history})
        else:
            Console().print(comparison_table(found.about["key"], rows({found.experiment["algorithm"]["name"]: [found]})))
            print_json(found.experiment)


def _run(experiment: Experiment, out: Path | None, engine: str | None, workers: int | None, *, quiet: bool) -> Run:
    from protonorm.progress import Teller
    from protonorm.session import run as run_experiment

    with Teller(experiment.key, experiment.rounds, experiment.algorithm.headline, quiet=quiet) as teller:
        return run_experiment(experiment, out=out, engine=engine or "serial", workers=workers, watch=teller).run


def _run_or_failure(
    experiment: Experiment, out: Path | None, engine: str | None, workers: int | None, *, quiet: bool
) -> Run:
    """Run an experiment for a table, where a run that diverged is a result too."""
    from protonorm.history import read_run, runs_root

    try:
        return _run(experiment, out, engine, workers, quiet=quiet)
    except Diverged as error:
        complain(str(error))
        return read_run(runs_root(out) / experiment.key)


def _headline(runs: dict[str, list[Run]]) -> str:
    first = next(iter(runs.values()))[0].experiment
    data, deal = first["dataset"]["name"], first["partition"]
    settings = ", ".join(f"{name} {value}" for name, value in deal.items() if name not in ("name", "seed") and value)
    return f"{data}, {deal['name']} ({settings}), {first['clients']} clients, {first['rounds']} rounds"


def _plain(run: Run) -> dict[str, Any]:
    return {
        "key": run.about["key"],
        "folder": str(run.folder),
        "experiment": run.experiment,
        "rounds": len(run.history),
        "finished": run.finished,
        "headline": run.about["headline"],
        "summary": {rule: run.summary(rule) for rule in run.about["rules"]},
        "majority": run.about["majority"],
        "failure": run.failure,
    }


def print_json(value: dict[str, Any]) -> None:
    """Print JSON on the answer stream."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextmanager
def reporting(again: str) -> Iterator[None]:
    """Turn what can go wrong into a sentence and an exit code."""
    if os.environ.get("PROTONORM_DEBUG"):
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        complain(f"Stopped. Finished rounds are kept; {again} goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, BlockingIOError) as error:
        complain(str(error))
        raise typer.Exit(REFUSED) from None
    except OSError as error:
        complain(f"A file could not be used: {error}.")
        raise typer.Exit(FAILED) from None
    except Failed as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None


def complain(sentence: str) -> None:
    """Say what is wrong on the error stream."""
    sys.stderr.write(f"protonorm: {sentence}\n")


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
