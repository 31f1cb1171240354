"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Checkpoint(StrEnum):
    """Of which round a trained client is."""

    chosen = "chosen"
    last = "last"


def read_path(text: str | Path) -> Path:
    """Refuse a path that no file can have; an empty one would mean the current folder."""
    if not str(text) or "\0" in str(text):
        raise typer.BadParameter("expected the path of a file or folder.")
    return Path(text)


def with_skip_bad(words: Sequence[str] | None, wanted: bool) -> list[str]:
    """Put the setting that --skip-bad stands for after the words of a command."""
    return [*(words or []), *(["dataset.skip_bad=true"] if wanted else [])]


Out = Annotated[
    Path | None,
    typer.Option(parser=read_path, metavar="PATH", help="Folder of all runs; PROTONORM_RUNS or ./runs if not given."),
]
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
