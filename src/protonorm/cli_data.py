"""The commands `data list`, `data prepare` and `data download`. None of them needs torch."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from protonorm.console import print_json, reporting, say

EVERY = 10.0  # seconds between plain lines

data = typer.Typer(no_args_is_help=True, help="See which data sets are there, and prepare others.")

Name = Annotated[str, typer.Argument(help="A data set: see `protonorm data list`.")]
Root = Annotated[
    Path | None, typer.Option(help="Folder of prepared data; PROTONORM_DATA or the user's cache folder if not given.")
]
Archives = Annotated[Path, typer.Option("--from", help="Folder with the official archives.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Refuse archives with another checksum.")]
Mirror = Annotated[str | None, typer.Option(help="Address of a folder to download from instead of the official one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@data.command("list")
def list_(root: Root = None, as_json: Json = False) -> None:
    """List the data sets: what is there, what is missing and what to do."""
    with reporting():
        from protonorm.data.places import data_root

        found = [state(name, data_root(root)) for name in names()]
        if as_json:
            print_json({"root": str(data_root(root)), "datasets": found})
        else:
            say(states_table(found, data_root(root)))


@data.command()
def prepare(name: Name, source: Archives, root: Root = None, check: Check = True) -> None:
    """Make a data set's file from the official archives in a folder."""
    with reporting(), Telling() as tell:
        from protonorm.data.prepare import prepare as prepare_archives

        path, arrays = prepare_archives(name, source, root, checked=check, tell=tell)
        say(summary(path, arrays))


@data.command()
def download(name: Name, root: Root = None, mirror: Mirror = None, check: Check = True) -> None:
    """Fetch a data set's official archives, and prepare it; a download that stopped goes on."""
    with reporting(), Telling() as tell:
        from protonorm.data.download import download as fetch_archives
        from protonorm.data.places import data_root
        from protonorm.data.prepare import prepare as prepare_archives

        folder = data_root(root) / "archives" / name
        fetch_archives(name, folder, mirror=mirror, checked=check, tell=tell)
        path, arrays = prepare_archives(name, folder, root, checked=check, tell=tell)
        say(summary(path, arrays))
        say(f"The archives are in {folder}; they are no longer needed.")


def names() -> list[str]:
    """Name the data sets that have a file, or none to need one."""
    from protonorm.data import DATASETS

    return [name for name, entry in DATASETS.items() if "samples" in entry.details]


def state(name: str, root: Path) -> dict[str, Any]:
    """Say of one data set whether it is there."""
    from protonorm.data.official import SOURCES
    from protonorm.data.prepare import wanted
    from protonorm.data.prepared import glance

    if name not in SOURCES:
        return {"name": name, "there": True, "what": "in the package"}
    path = root / f"{name}.npz"
    if not path.exists():
        return {"name": name, "there": False, "what": f"missing: download it, or prepare it from {wanted(name)}"}
    try:
        samples, *size = glance(path)
    except ValueError as error:
        return {"name": name, "there": False, "what": str(error)}
    return {"name": name, "there": True, "what": f"{samples} pictures, {'×'.join(map(str, size))}"}


def states_table(found: list[dict[str, Any]], root: Path) -> Any:
    """Show which data sets are there."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=f"Data in {root}", box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column("data set", no_wrap=True)
    table.add_column("there", no_wrap=True)
    table.add_column("what", overflow="fold")
    for one in found:
        table.add_row(one["name"], "yes" if one["there"] else "no", one["what"])
    table.caption = (
        "protonorm data download NAME fetches the official archives; protonorm data prepare NAME --from FOLDER takes "
        "those in a folder. Pictures of your own need neither: protonorm run dataset=folder:PATH."
    )
    return table


def summary(path: Path, arrays: Any) -> str:
    """Say what was prepared."""
    samples, *size = arrays.images.shape
    return f"{path}: {samples} pictures, {'×'.join(map(str, size))}, {len(arrays.classes)} classes."


class Telling:
    """Tell on the error stream how far a long work is: a bar in a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        self._live = Progress(*columns, TimeRemainingColumn(), console=self._console)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, what: str, done: int, whole: int) -> None:
        """Tell of one step."""
        if self._console.is_terminal:
            if what not in self._tasks:
                self._tasks[what] = self._live.add_task(what)
            self._live.update(self._tasks[what], completed=done, total=whole or None)
        elif time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            share = f"{100 * done / whole:.0f} %" if whole else f"{done} bytes"
            self._console.print(f"{what}: {share}", highlight=False)
