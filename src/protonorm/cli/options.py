"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path | None, typer.Option(help="Folder of all runs; PROTONORM_RUNS or ./runs if not given.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="Where clients live: see `protonorm list engines`.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores if not given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
