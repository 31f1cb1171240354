"""Command line: entry point and lazily imported commands, so that --help and list do not import torch."""

import io
import sys
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from protonorm.cli.options import TAKE_SETTINGS
from protonorm.core.text import visible

ABOUT = "Federate different models on different data by sharing prototypes, not networks."


def show_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        from protonorm import __version__  # slow to look up

        sys.stdout.write(f"protonorm {__version__}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")]


def options(version: Version = False) -> None:
    """Define the options before a command's name."""


COMMANDS = {  # module of each command, imported on use
    "run": "run", "compare": "run", "sweep": "search", "tune": "search", "list": "listing:list_", "show": "records",
    "remove": "records", "archive": "records", "bench": "inspect", "inspect": "inspect", "export": "predict",
    "predict": "predict", "report": "records", "reproduce": "reproduce", "data": "listing", "cluster": "inspect",
    "deploy": "deploy", "backbones": "listing", "pilot": "run", "audit": "audit", "doctor": "inspect",
}  # fmt: skip


class LoadedCommands(UserDict[str, Any]):
    """Commands by name, each imported on lookup, as no command needs the modules of the others."""

    def __getitem__(self, name: str) -> Any:
        module, _, function = self.data[name].partition(":")
        target = getattr(import_module(f"protonorm.cli.{module}"), function or name)
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        if isinstance(target, typer.Typer):
            alone.add_typer(target, name=name)
            return typer.main.get_group(alone).commands[name]
        alone.command(name)(target)
        return typer.main.get_command(alone)


class App(TyperGroup):
    """Group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast("dict[str, Any]", LoadedCommands(COMMANDS))

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the words before a command's name."""
        with visible_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, context: Any) -> Any:
        """Find a command, parse its words, and run it."""
        with visible_errors():
            return super().invoke(context)


@contextmanager
def visible_errors() -> Iterator[None]:
    """Escape the message of typer's errors, as they repeat the user's words; for --rounds 5, suggest rounds=5."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            command = getattr(getattr(error, "ctx", None), "command", None)
            if type(error).__name__ == "NoSuchOption" and command and command.name in TAKE_SETTINGS:
                name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
                message = f"{message.rstrip('.')}. Settings are words without dashes: {name}=…."
            error.message = visible(message)  # type: ignore[attr-defined]
        raise


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
