"""Commands, options and arguments that several commands share. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from protonorm.cli.console import complain
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.runs.run import Run

TAKE_SETTINGS = ("run", "compare", "sweep", "tune", "check")


@contextmanager
def visible_errors(*, takes_settings: bool = False) -> Iterator[None]:
    """Escape the message of typer's errors; for --rounds 5, suggest rounds=5."""
    try:
        yield
    except Exception as error:
        if isinstance(said := getattr(error, "message", None), str):
            name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
            if takes_settings and name and type(error).__name__ == "NoSuchOption":
                said = f"{said.rstrip('.')}. Settings are words without dashes: {name}=…."
            error.message = visible(said)  # type: ignore[attr-defined]
        raise


class Command(TyperCommand):
    """Command whose errors are escaped, as they repeat the user's words."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the command's words."""
        with visible_errors(takes_settings=self.name in TAKE_SETTINGS):
            return super().make_context(*arguments, **options)


class Commands(TyperGroup):
    """Group of commands."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the words before a command's name."""
        with visible_errors():
            return super().make_context(*arguments, **options)

    def resolve_command(self, *arguments: Any, **options: Any) -> Any:
        """Find a command by its name."""
        with visible_errors():
            return super().resolve_command(*arguments, **options)


class Checkpoint(StrEnum):
    """Round of a trained client."""

    chosen = "chosen"
    last = "last"


def read_path(text: str | Path) -> Path:
    """Parse a path; raise an error for invalid and empty paths, as an empty path would mean the current folder."""
    if not str(text) or "\0" in str(text):
        raise typer.BadParameter("expected the path of a file or folder.")
    return Path(text)


def path_option(help: str, *names: str, metavar: str = "PATH") -> Any:
    """Declare an option for a path."""
    return typer.Option(*names, parser=read_path, metavar=metavar, help=help)


def with_skip_bad(words: Sequence[str] | None, wanted: bool) -> list[str]:
    """Append the setting of --skip-bad to the words of a command."""
    return [*(words or []), *(["dataset.skip_bad=true"] if wanted else [])]


Out = Annotated[Path | None, path_option("Folder of all runs; PROTONORM_RUNS or ./runs if not given.")]
NoOwnCode = Annotated[
    bool,
    typer.Option(
        "--no-own-code", help="Refuse every file.py:Name, whose code would be run; so does PROTONORM_NO_OWN_CODE=1."
    ),
]
EngineName = Annotated[str | None, typer.Option("--engine", help="Where clients live: see `protonorm list engines`.")]
Workers = Annotated[int | None, typer.Option(min=1, max=4096, help="Processes to use; all cores if not given.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Go on without pictures that cannot be read: dataset.skip_bad=true.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
CheckpointOf = Annotated[
    Checkpoint,
    typer.Option(
        "--checkpoint",
        help="Which round's client: `chosen`, the round that tables report, which has the best validation accuracy; "
        "or the `last`. Without a validation part both are the last.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTINGS",
        help="A YAML file and/or key=value, such as algorithm.gamma=200 rounds=50 tracker=tensorboard.",
    ),
]


class Wanted(NamedTuple):
    """Runs selected by the words of a command: by name, and by filters on their settings."""

    names: list[str]
    filters: list[str]  # key=value
    root: Path

    @classmethod
    def of(cls, words: Sequence[str], out: Path | None) -> Wanted:
        """Separate names of runs from filters; a folder whose name has an equals sign is a name."""
        from protonorm.runs.layout import INFO, exists, runs_root

        root = runs_root(out)
        names = [
            word
            for word in words
            if "=" not in word or any(exists(place / INFO) for place in (Path(word), root / word))
        ]
        return cls(names, [word for word in words if word not in names], root)

    def folders(self) -> list[Path]:
        """Return the folders of the named runs, each once; all runs without names."""
        from protonorm.runs.layout import find_run, find_runs

        folders = [find_run(self.root, name) for name in self.names] if self.names else find_runs(self.root)
        return list({folder.resolve(): folder for folder in folders}.values())

    def runs(self) -> list[Run]:
        """Read the selected runs that match the filters; damaged runs are reported."""
        from protonorm.analysis.settings import matching, read_filters
        from protonorm.runs.run import read_some

        filters = read_filters(self.filters)
        return matching(read_some(self.folders(), complain), filters)

    def filtered_runs(self, undone: str) -> list[Run]:
        """Read the runs that match the filters; raise a ValueError if there are none."""
        runs = self.runs()
        if not runs:
            raise ValueError(f"There is no run with {' '.join(self.filters)} in {self.root}; {undone}.")
        return runs
