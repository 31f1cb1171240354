"""Commands `remove` and `archive`: delete runs, and pack records small enough to be committed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import page_width, reporting, say
from protonorm.cli.options import Out, Wanted, path_option
from protonorm.core.text import counted, visible

if TYPE_CHECKING:
    from protonorm.runs.run import Run


NAMED = 5  # maximum foreign files named
YES = ("y", "yes")
REPORT = "report.html"  # written by `protonorm report` into a run's folder
LOG = "tensorboard"  # folder of the tracker of this name
LOGGED = re.compile(r"events\.out\.tfevents\..+|projector_config\.pbtxt|metadata\.tsv|tensors\.tsv|sprite\.png")

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_OR_FILTER",
        help="Runs: folders, names, or beginnings of names; or filters such as algorithm=local state=unfinished.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
To = Annotated[Path, path_option("Folder for the archived records, packed into one file.", "--to", metavar="FOLDER")]
WithClients = Annotated[
    bool, typer.Option("--with-clients", help="Also keep the trained clients, the server's state and all prototypes.")
]


def remove(words: Words, out: Out = None, yes: Yes = False) -> None:
    """Remove runs after confirmation: their records and trained clients. Files not written by protonorm are kept."""
    with reporting():
        from protonorm.cli.run_tables import runs_table
        from protonorm.runs.archive import refuse_others, remove_runs
        from protonorm.runs.run import UNREADABLE, read_whole

        wanted = Wanted.of(words, out)
        runs: list[Run] = wanted.filtered_runs("nothing was removed") if wanted.filters else []
        damaged: list[Path] = []
        for folder in [] if wanted.filters else wanted.folders():
            try:
                runs.append(read_whole(folder))
            except UNREADABLE:  # damaged runs may be removed too
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
        say(f"Removed {counted(len(folders), 'run')}.")
        for folder, files in kept.items():
            if files:
                say(visible(kept_line(folder, files)))


def archive(words: Words, to: To, out: Out = None, with_clients: WithClients = False) -> None:
    """Pack the records of runs into one file, without networks; commands such as `show --out FOLDER` read it."""
    with reporting():
        from protonorm.runs.archive import archive_runs, refuse_place

        wanted = Wanted.of(words, out)
        filtered = wanted.filtered_runs("nothing was archived") if wanted.filters else []
        folders = [run.folder for run in filtered] or wanted.folders()
        refuse_place(to, folders, wanted.root)
        made = archive_runs(folders, to, with_clients=with_clients)
        for one in made:
            say(visible(f"{one.folder.name}: {one.rounds} of {one.asked} rounds, {kilobytes(one.size)}"))
        say(visible(f"Archived {counted(len(made), 'run')} in {to}: {kilobytes(sum(one.size for one in made))}."))


def ask(count: int) -> None:
    """Ask for confirmation; raise a ValueError without an answer, and exit if the answer is no."""
    sys.stderr.write(f"Remove {counted(count, 'run')}? What is removed is gone. [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise ValueError("Nobody answered, and nothing was removed; --yes removes without asking.")
    if answer.strip().lower() not in YES:
        say("Nothing was removed.")
        raise typer.Exit


def own_extras(folder: Path) -> list[Path]:
    """List protonorm's files beside a run's record: its report, and the log for TensorBoard."""
    from protonorm.report.page.write import is_page  # slow to import

    report, log = folder / REPORT, folder / LOG
    found = [report] if report.exists() and is_page(report) else []
    if not log.is_symlink():
        found += [Path(place, name) for place, _, files in os.walk(log) for name in files if LOGGED.fullmatch(name)]
    return found


def kept_line(folder: Path, files: Sequence[Path]) -> str:
    """Describe the files of a run's folder that are not part of its record and are kept."""
    names = [str(path.relative_to(folder)) for path in files]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"Kept in {folder}, as no part of the run: {', '.join(names[:NAMED])}{more}."


def kilobytes(size: int) -> str:
    """Format a number of bytes as kB, rounded up."""
    return f"{-(-size // 1000):,} kB"
