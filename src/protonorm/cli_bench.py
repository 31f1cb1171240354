"""The command `bench`: measure speed on this machine. Listing the benchmarks does without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from protonorm.console import print_json, reporting, say

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Benchmarks to run, or `all`; they are listed if none is given."),
]
To = Annotated[
    Path | None,
    typer.Option(help="Folder for the results; benchmarks/results in a checkout, else ./bench-results."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def bench(names: Names = None, to: To = None, as_json: Json = False) -> None:
    """Measure speed: what is compared runs side by side, and results are kept as JSON."""
    from protonorm.companion import companion

    with reporting(quiet=as_json):
        package = companion("benchmarks")
        if not names:
            known = package.BENCHMARKS
            print_json({"benchmarks": known}) if as_json else say(listing(known))
            return
        kept, results = {}, import_module(f"{package.__name__}.results")
        wanted = results.chosen([name for name in names if name != "all"])
        for name in list(package.BENCHMARKS) if "all" in names else wanted:
            found, rows, path = measured(results, name, to, quiet=as_json)
            kept[name] = found | {"file": str(path)}
            if not as_json:
                say(results_table(package.BENCHMARKS[name], rows, found))
                say(f"Kept: {path}")
        if as_json:
            print_json(kept)


def measured(
    results: ModuleType, name: str, to: Path | None, *, quiet: bool
) -> tuple[dict[str, Any], list[list[str]], Path]:
    """Run one benchmark and keep what it finds: the finding, its table and its file."""
    with telling(quiet=quiet) as tell:
        module, found = results.run(name, tell, f"protonorm bench {name}")
    return found, module.table(found), results.keep(name, found, results.place(to))


@contextmanager
def telling(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Tell on the error stream what is being measured: one moving line in a terminal, plain lines elsewhere."""
    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        yield lambda line: console.print(line, highlight=False)
        return
    with console.status("") as status:
        yield status.update


def listing(known: dict[str, str]) -> Any:
    """List the benchmarks."""
    table = _table("Benchmarks", "protonorm bench NAME… runs some, protonorm bench all runs all; alone is best.")
    for heading in ("name", "what is compared"):
        table.add_column(heading, overflow="fold")
    for name, summary in known.items():
        table.add_row(name, summary)
    return table


def results_table(summary: str, rows: list[list[str]], found: dict[str, Any]) -> Any:
    """Show what a benchmark found."""
    machine = found["machine"]
    caption = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}."
    table = _table(summary[0].upper() + summary[1:], caption)
    for heading in rows[0]:
        table.add_column(heading, overflow="fold")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _table(title: str, caption: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, caption=caption, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
