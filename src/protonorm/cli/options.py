"""Commands, options and arguments that several commands share. Does not import torch."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from protonorm.cli.console import complain

if TYPE_CHECKING:
    from protonorm.runs.run import Run

TAKE_SETTINGS = ("run", "pilot", "compare", "sweep", "tune", "check")


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


def with_skip_bad(words: Sequence[str] | None, skip_bad: bool) -> list[str]:
    """Append the setting of --skip-bad to the words of a command."""
    return [*(words or []), *(["dataset.skip_bad=true"] if skip_bad else [])]


Out = Annotated[Path | None, path_option("Folder of all runs; PROTONORM_RUNS or ./runs if not given.")]
PushTo = Annotated[
    str | None,
    typer.Option("--push-to", metavar="OWNER/NAME", help="Also upload it to the Hugging Face Hub, privately."),
]
NO_OWN_CODE = "Run no code of a file.py:Name; PROTONORM_NO_OWN_CODE=1 does the same."
NoOwnCode = Annotated[bool, typer.Option("--no-own-code", help=NO_OWN_CODE)]
EngineName = Annotated[str | None, typer.Option("--engine", help="Where clients live: see `protonorm list engines`.")]
Workers = Annotated[int | None, typer.Option(min=1, max=4096, help="Processes to use; all cores if not given.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip pictures that cannot be read: dataset.skip_bad=true.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
CHECKPOINT = "Which round's client: `chosen`, of the best validation accuracy, as in tables; or the `last`."
CheckpointOf = Annotated[Checkpoint, typer.Option(help=CHECKPOINT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result, and errors.")]
SETTINGS = "A method, such as protonorm:gamma=200; YAML files; key=value."
Settings = Annotated[list[str] | None, typer.Argument(metavar="METHOD_OR_SETTING", help=SETTINGS)]


class Wanted(NamedTuple):
    """Runs selected by the words of a command: by name, and by filters on their settings."""

    names: list[str]
    filters: list[str]  # key=value
    root: Path

    @classmethod
    def of(cls, words: Sequence[str], out: Path | None) -> "Wanted":
        """Separate names of runs from filters; a folder whose name has an equals sign is a name."""
        from protonorm.runs.layout import INFO, exists, runs_root

        root = runs_root(out)
        names = [word for word in words if "=" not in word or exists(Path(word, INFO)) or exists(root / word / INFO)]
        return cls(names, [word for word in words if word not in names], root)

    def folders(self) -> list[Path]:
        """Return the folders of the named runs, each once; all runs without names."""
        from protonorm.runs.layout import find_run, find_runs

        folders = [find_run(self.root, name) for name in self.names] if self.names else find_runs(self.root)
        return list({folder.resolve(): folder for folder in folders}.values())

    def runs(self, if_none: str = "") -> "list[Run]":
        """Read the selected runs that match the filters and report damaged ones; raise a ValueError `if_none` match."""
        from protonorm.analysis.settings import matching, read_filters
        from protonorm.runs.run import read_some

        filters = read_filters(self.filters)
        runs = matching(read_some(self.folders(), complain), filters)
        if if_none and not runs:
            raise ValueError(f"There is no run with {' '.join(self.filters)} in {self.root}; {if_none}.")
        return runs
