"""The command `remove`: runs that are no longer wanted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import page_width, reporting, say
from protonorm.cli.options import Out
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.runs.run import Run

NAMED = 5  # files of others that are named; of more, the first ones
YES = ("y", "yes")
REPORT = "report.html"  # what `protonorm report` writes into a run's folder
LOG = "tensorboard"  # the folder of the tracker with this name, and the files in it
LOGGED = re.compile(r"events\.out\.tfevents\..+|projector_config\.pbtxt|metadata\.tsv|tensors\.tsv|sprite\.png")

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_OR_FILTER",
        help="Runs: folders, names, or beginnings of names; or filters such as algorithm=local state=unfinished.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]


def remove(words: Words, out: Out = None, yes: Yes = False) -> None:
    """Remove runs after asking: their records and trained clients. Files that are not ours are kept."""
    with reporting():
        from protonorm.analysis.reading import UNREADABLE, read_whole
        from protonorm.cli.run_tables import runs_table
        from protonorm.cli.selection import sort_words, wanted_folders, wanted_runs
        from protonorm.runs.layout import runs_root
        from protonorm.runs.removing import refuse_others, remove_runs

        root = runs_root(out)
        wanted = sort_words(words, root)
        runs: list[Run] = []
        damaged: list[Path] = []
        if wanted.filters:
            runs = wanted_runs(wanted, root)
            if not runs:
                raise ValueError(f"There is no run with {' '.join(wanted.filters)} in {root}; nothing was removed.")
        else:
            for folder in wanted_folders(wanted, root):
                try:
                    runs.append(read_whole(folder))
                except UNREADABLE:  # a damaged run may be removed like any other
                    damaged.append(folder)
        folders = [*(run.folder for run in runs), *damaged]
        for folder in folders:
            refuse_others(folder)
        if runs:
            say(runs_table(runs, page_width()))
        for folder in damaged:
            say(visible(f"{folder} cannot be read."))
        if not yes:
            ask(len(folders))
        kept = remove_runs(folders, own_extras)
        say(f"Removed {counted(len(folders))}.")
        for folder, files in kept.items():
            if files:
                say(visible(kept_line(folder, files)))


def ask(count: int) -> None:
    """Ask whether so many runs may go; refuse if nobody answers, and stop if the answer is no."""
    sys.stderr.write(f"Remove {counted(count)}? What is removed is gone. [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise ValueError("Nobody answered, and nothing was removed; --yes removes without asking.")
    if answer.strip().lower() not in YES:
        say("Nothing was removed.")
        raise typer.Exit


def own_extras(folder: Path) -> list[Path]:
    """List what is ours beside a run's record: its report, and the log for TensorBoard."""
    from protonorm.report.page.write import is_page  # slow to import

    report, log = folder / REPORT, folder / LOG
    found = [report] if report.exists() and is_page(report) else []
    if not log.is_symlink():
        found += [Path(place, name) for place, _, files in os.walk(log) for name in files if LOGGED.fullmatch(name)]
    return found


def kept_line(folder: Path, files: Sequence[Path]) -> str:
    """Say what was in a run's folder that is not part of its record, and stays."""
    names = [str(path.relative_to(folder)) for path in files]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"Kept in {folder}, as no part of the run: {', '.join(names[:NAMED])}{more}."


def counted(count: int) -> str:
    """Count runs."""
    return f"{count} run{'' if count == 1 else 's'}"
