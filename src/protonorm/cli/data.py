"""Commands `data list`, `data prepare` and `data download`. None of them imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from protonorm.cli.console import Column, make_table, print_json, reporting, say
from protonorm.cli.options import Command, Commands, Json
from protonorm.core.text import visible

data = typer.Typer(cls=Commands, no_args_is_help=True, help="See which data sets are there, and prepare others.")

Name = Annotated[str, typer.Argument(help="A data set: see `protonorm data list`.")]
Root = Annotated[
    Path | None, typer.Option(help="Folder of prepared data; PROTONORM_DATA or the user's cache folder if not given.")
]
Archives = Annotated[Path, typer.Option("--from", help="Folder with the official archives.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Refuse archives with another checksum.")]
Mirror = Annotated[str | None, typer.Option(help="Address of a folder to download from instead of the official one.")]


@data.command("list", cls=Command)
def list_(root: Root = None, as_json: Json = False) -> None:
    """List the data sets: which are available, which are missing, and how to get them."""
    with reporting():
        from protonorm.data.prepared import data_root

        found = [state(name, data_root(root)) for name in names()]
        if as_json:
            print_json({"root": str(data_root(root)), "datasets": found})
        else:
            say(states_table(found, data_root(root)))


@data.command(cls=Command)
def prepare(name: Name, source: Archives, root: Root = None, check: Check = True) -> None:
    """Prepare a data set's file from the official archives in a folder."""
    with reporting():
        from protonorm.data.published.prepare import prepare as prepare_archives

        path, arrays = prepare_archives(name, source, root, checked=check)
        say(summary(path, arrays))


@data.command(cls=Command)
def download(name: Name, root: Root = None, mirror: Mirror = None, check: Check = True) -> None:
    """Download a data set's official archives and prepare it; an interrupted download is resumed."""
    with reporting():
        from protonorm.data.prepared import data_root
        from protonorm.data.published.prepare import download as fetch_archives
        from protonorm.data.published.prepare import prepare as prepare_archives

        folder = data_root(root) / "archives" / name
        fetch_archives(name, folder, mirror=mirror, checked=check)
        path, arrays = prepare_archives(name, folder, root, checked=check)
        say(summary(path, arrays))
        say(visible(f"The archives are in {folder}; they are no longer needed."))


def names() -> list[str]:
    """List the data sets that have a file or are part of the package."""
    from protonorm.data import DATASETS

    return [name for name, entry in DATASETS.items() if "samples" in entry.details]


def state(name: str, root: Path) -> dict[str, Any]:
    """Return whether a data set is available."""
    from protonorm.data.prepared import read_shape
    from protonorm.data.published.prepare import SOURCES, wanted

    if name not in SOURCES:
        return {"name": name, "there": True, "what": "in the package"}
    path = root / f"{name}.npz"
    if not path.exists():
        return {"name": name, "there": False, "what": f"missing: download it, or prepare it from {wanted(name)}"}
    try:
        samples, *size = read_shape(path)
    except ValueError as error:
        return {"name": name, "there": False, "what": str(error)}
    return {"name": name, "there": True, "what": f"{samples} pictures, {'×'.join(map(str, size))}"}


def states_table(found: list[dict[str, Any]], root: Path) -> Any:
    """Build the table of available data sets."""
    rows = [[one["name"], "yes" if one["there"] else "no", one["what"]] for one in found]
    columns = [Column("data set", no_wrap=True), Column("there", no_wrap=True), Column("what")]
    caption = (
        "protonorm data download NAME fetches the official archives; protonorm data prepare NAME --from FOLDER takes "
        "those in a folder. Pictures of your own need neither: protonorm run dataset=folder:PATH."
    )
    return make_table(f"Data in {root}", columns, rows, caption)


def summary(path: Path, arrays: Any) -> str:
    """Describe what was prepared."""
    samples, *size = arrays.images.shape
    return f"{visible(str(path))}: {samples} pictures, {'×'.join(map(str, size))}, {len(arrays.classes)} classes."
