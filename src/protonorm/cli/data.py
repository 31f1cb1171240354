"""Commands `data list`, `data prepare` and `data download`. None of them imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from protonorm.cli.console import Column, make_table, print_json, reporting, say
from protonorm.cli.options import Json
from protonorm.core.text import visible

data = typer.Typer(no_args_is_help=True, help="See which data sets are there, and prepare others.")

Name = Annotated[str, typer.Argument(help="A data set: see `protonorm data list`.")]
Root = Annotated[
    Path | None, typer.Option(help="Folder of prepared data; PROTONORM_DATA or the user's cache if not given.")
]
Archives = Annotated[Path, typer.Option("--from", help="Folder with the official archives.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Refuse archives with another checksum.")]
Mirror = Annotated[str | None, typer.Option(help="Address of a folder to download from instead of the official one.")]
CAPTION = (
    "protonorm data download NAME fetches the official archives; protonorm data prepare NAME --from FOLDER takes "
    "those in a folder. Pictures of your own need neither: protonorm run dataset=folder:PATH."
)


@data.command("list")
def list_(root: Root = None, as_json: Json = False) -> None:
    """List the data sets: which are available, which are missing, and how to get them."""
    with reporting():
        from protonorm.data import DATASETS
        from protonorm.data.prepared import data_root

        folder = data_root(root)
        states = [state(name, folder) for name, entry in DATASETS.items() if "samples" in entry.details]
        if as_json:
            print_json({"root": str(folder), "datasets": states})
            return
        rows = [[item["name"], "yes" if item["there"] else "no", item["what"]] for item in states]
        columns = [Column("data set", no_wrap=True), Column("there", no_wrap=True), Column("what")]
        say(make_table(f"Data in {folder}", columns, rows, CAPTION))


@data.command()
def prepare(name: Name, source: Archives, root: Root = None, check: Check = True) -> None:
    """Prepare a data set's file from the official archives in a folder."""
    with reporting():
        _prepare(name, source, root, check)


@data.command()
def download(name: Name, root: Root = None, mirror: Mirror = None, check: Check = True) -> None:
    """Download a data set's official archives and prepare it; an interrupted download is resumed."""
    with reporting():
        from protonorm.data.prepared import data_root
        from protonorm.data.published.prepare import download as fetch_archives

        folder = data_root(root) / "archives" / name
        fetch_archives(name, folder, mirror=mirror, checked=check)
        _prepare(name, folder, root, check)
        say(visible(f"The archives are in {folder}; they are no longer needed."))


def _prepare(name: str, source: Path, root: Path | None, check: bool) -> None:
    from protonorm.data.published.prepare import prepare as prepare_archives

    path, arrays = prepare_archives(name, source, root, checked=check)
    samples, *size = arrays.images.shape
    say(f"{visible(str(path))}: {samples} pictures, {'×'.join(map(str, size))}, {len(arrays.classes)} classes.")


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
