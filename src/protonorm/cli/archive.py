"""The command `archive`: the records of runs, small enough to be committed beside a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protonorm.cli.console import reporting, say
from protonorm.cli.options import Out, read_path
from protonorm.cli.remove import Words, counted, own_extras
from protonorm.core.text import visible

To = Annotated[
    Path,
    typer.Option("--to", parser=read_path, metavar="FOLDER", help="Folder for the archived records, each in its own."),
]
WithClients = Annotated[
    bool, typer.Option("--with-clients", help="Also keep the trained clients, the server's state and all prototypes.")
]


def archive(words: Words, to: To, out: Out = None, with_clients: WithClients = False) -> None:
    """Copy the records of runs to a folder, packed and without networks; `show --out FOLDER` and others read them."""
    with reporting():
        from protonorm.analysis.reading import read_whole
        from protonorm.cli.selection import sort_words, wanted_folders, wanted_runs
        from protonorm.runs.archive import archive_run, at_rest, refuse_place
        from protonorm.runs.layout import runs_root

        root = runs_root(out)
        wanted = sort_words(words, root)
        if wanted.filters:
            folders = [run.folder for run in wanted_runs(wanted, root)]
            if not folders:
                raise ValueError(f"There is no run with {' '.join(wanted.filters)} in {root}; nothing was archived.")
        else:
            folders = wanted_folders(wanted, root)
        refuse_place(to, folders, root)
        for folder in folders:
            with at_rest(folder):
                pass  # one that is at work is refused before anything is written
        size = 0
        for folder in folders:
            with at_rest(folder):
                run = read_whole(folder)
                made = archive_run(run, to, with_clients=with_clients, more=own_extras)
            size += made.size
            asked = run.info.experiment.rounds
            say(visible(f"{made.folder.name}: {made.rounds} of {asked} rounds, {kilobytes(made.size)}"))
        say(visible(f"Archived {counted(len(folders))} in {to}: {kilobytes(size)}."))


def kilobytes(size: int) -> str:
    """Write a number of bytes as thousands of them, rounded up."""
    return f"{-(-size // 1000):,} kB"
