"""The command `report`: a page that tells of runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, reporting, say
from protonorm.cli.options import Out
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.runs.run import Run

LONGEST = 60  # bytes of a file's name, without its hash

Names = Annotated[list[str], typer.Argument(metavar="RUN", help="Runs: folders, names, or beginnings of names.")]
To = Annotated[
    Path | None,
    typer.Option(help="File to write; if not given, report.html in a run's folder, or <runs>/reports/… for several."),
]


def report(runs: Names, out: Out = None, to: To = None) -> None:
    """Write one HTML file that tells of a run, or puts several side by side; it needs no network."""
    with reporting():
        from protonorm.analysis.reading import read_some, read_whole
        from protonorm.report.page import write_page
        from protonorm.runs.layout import find_run, runs_root

        root = runs_root(out)
        folders = [find_run(root, name) for name in runs]
        found = [read_whole(folders[0])] if len(folders) == 1 else read_some(folders, complain)
        if not found:
            raise ValueError(f"None of these {len(folders)} runs can be read: there is nothing to report.")
        say(visible(f"Report: {write_page(found, to or default_place(found, root))}"))


def default_place(runs: Sequence[Run], root: Path) -> Path:
    """Say where a page goes: to its run, or among the reports under a name that tells what it compares."""
    if len(runs) == 1:
        return runs[0].folder / "report.html"
    keys = sorted(run.folder.resolve().name for run in runs)
    words = "-".join(dict.fromkeys(re.sub(r"[^\w.-]+", "-", key.rsplit("-seed", 1)[0]) for key in keys))
    mark = hashlib.sha256("\n".join(keys).encode(errors="backslashreplace")).hexdigest()[:10]
    return root / "reports" / f"{words.encode()[:LONGEST].decode(errors='ignore')}-{mark}.html"
