"""The command line. What a command does not need is not imported: --help and list do without torch."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from protonorm.cli import (
    archive,
    bench,
    cluster,
    compare,
    data,
    deploy,
    inspect,
    listing,
    predict,
    remove,
    report,
    reproduce,
    run,
    show,
    sweep,
    tune,
)
from protonorm.cli.commands import Command, Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federate different models on different data by sharing prototypes, not networks.",
)

app.command(cls=Command)(run.run)
app.command(cls=Command)(compare.compare)
app.command(cls=Command)(sweep.sweep)
app.command(cls=Command)(tune.tune)
app.command("list", cls=Command)(listing.list_)
app.command(cls=Command)(show.show)
app.command(cls=Command)(remove.remove)
app.command(cls=Command)(archive.archive)
app.command(cls=Command)(bench.bench)
app.command(cls=Command)(inspect.inspect)
app.command(cls=Command)(predict.export)
app.command(cls=Command)(predict.predict)
app.command(cls=Command)(report.report)
app.command(cls=Command)(reproduce.reproduce)
app.add_typer(data.data, name="data")
app.add_typer(cluster.cluster, name="cluster")
app.add_typer(deploy.deploy, name="deploy")


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        from protonorm import __version__  # takes time to look up

        sys.stdout.write(f"protonorm {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federate different models on different data by sharing prototypes, not networks."""


def main() -> None:
    """Run the command line; signs that a terminal or a file cannot take are written as escapes, not as an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="protonorm")
