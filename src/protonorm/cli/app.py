"""Command line: entry point and lazily imported commands, so that --help and list do not import torch."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any, cast

import typer

from protonorm.cli.console import entries_table, print_json, reporting, say
from protonorm.cli.options import Command, Commands, Json
from protonorm.config.kinds import KINDS

ABOUT = "Federate different models on different data by sharing prototypes, not networks."
Kind = StrEnum("Kind", {kind.plural: kind.plural for kind in KINDS.values()})  # type: ignore[misc]


def list_(kind: Kind, as_json: Json = False) -> None:
    """List the components that can be chosen by name."""
    with reporting(quiet=as_json):
        entries = next(one for one in KINDS.values() if one.plural == kind.value).table()
        if as_json:
            print_json({key: {"summary": entry.summary, **entry.details} for key, entry in entries.items()})
        else:
            say(entries_table(kind.value.capitalize(), entries))


def show_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        from protonorm import __version__  # slow to look up

        sys.stdout.write(f"protonorm {__version__}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")]


def options(version: Version = False) -> None:
    """Define the options before a command's name."""


COMMANDS = {  # module of each command, imported on use
    "run": "run",
    "compare": "run",
    "sweep": "search",
    "tune": "search",
    "list": "app:list_",
    "show": "show",
    "remove": "remove",
    "archive": "remove",
    "bench": "inspect",
    "inspect": "inspect",
    "export": "predict",
    "predict": "predict",
    "report": "show",
    "reproduce": "reproduce",
    "data": "data",
    "cluster": "inspect",
    "deploy": "deploy",
}


class LoadedCommands(Mapping[str, Any]):
    """Commands by name, each imported on lookup, as no command needs the modules of the others."""

    def __getitem__(self, name: str) -> Any:
        module, _, function = COMMANDS[name].partition(":")
        target = getattr(import_module(f"protonorm.cli.{module}"), function or name)
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        if isinstance(target, typer.Typer):
            alone.add_typer(target, name=name)
            return typer.main.get_group(alone).commands[name]
        alone.command(name, cls=Command)(target)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class App(Commands):
    """Group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast("dict[str, Any]", LoadedCommands())


app = typer.Typer(
    cls=App, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)
app.callback(help=ABOUT)(options)


def main() -> None:
    """Run the command line; characters that a stream cannot encode are written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="protonorm")
