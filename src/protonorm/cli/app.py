"""The command line. What a command does not need is not imported: --help and list do without torch."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from protonorm import __version__
from protonorm.cli import bench, compare, data, inspect, listing, predict, report, reproduce, run, show, sweep, tune
from protonorm.core.text import visible


@contextmanager
def _visible_errors() -> Iterator[None]:
    """Make what typer says of wrong words one line of plain text: it repeats them as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(said := getattr(error, "message", None), str):
            error.message = visible(said)  # type: ignore[attr-defined]
        raise


class Commands(TyperGroup):
    """All commands; wrong words never reach the terminal as escape sequences."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the words before the command's name."""
        with _visible_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Find the command, read its words, and do it."""
        with _visible_errors():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federate different models on different data by sharing prototypes alone.",
)

app.command()(run.run)
app.command()(compare.compare)
app.command()(sweep.sweep)
app.command()(tune.tune)
app.command("list")(listing.list_)
app.command()(show.show)
app.command()(bench.bench)
app.command()(inspect.inspect)
app.command()(predict.export)
app.command()(predict.predict)
app.command()(report.report)
app.command()(reproduce.reproduce)
app.add_typer(data.data, name="data")


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
    """Run the command line; signs that a terminal or a file cannot take are written as escapes, not as an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="protonorm")
