"""The command `bench`: measure speed on this machine. Listing the benchmarks does without torch."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from protonorm.cli.console import print_json, reporting, say
from protonorm.cli.options import Json
from protonorm.cli.progress import Display
from protonorm.cli.tables import make_table
from protonorm.core.text import visible

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Benchmarks to run, or `all`; they are listed if none is given."),
]
To = Annotated[
    Path | None,
    typer.Option(help="Folder for the results; benchmarks/results in a checkout, else ./bench-results."),
]


def bench(names: Names = None, to: To = None, as_json: Json = False) -> None:
    """Measure speed: what is compared runs side by side, and results are kept as JSON."""
    from protonorm.config.bundled import bundled

    with reporting(quiet=as_json):
        package = bundled("benchmarks")
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
                say(visible(f"Kept: {path}"))
        if as_json:
            print_json(kept)


def measured(
    results: ModuleType, name: str, to: Path | None, *, quiet: bool
) -> tuple[dict[str, Any], list[list[str]], Path]:
    """Run one benchmark and keep what it finds: the finding, its table and its file."""
    display = Display(quiet=quiet)
    module, found = results.run(name, display.say, f"protonorm bench {name}")
    return found, module.table(found), results.keep(name, found, results.place(to))


def listing(known: dict[str, str]) -> Any:
    """List the benchmarks."""
    caption = "protonorm bench NAME… runs some, protonorm bench all runs all; alone is best."
    return make_table("Benchmarks", ["name", "what is compared"], [list(line) for line in known.items()], caption)


def results_table(summary: str, rows: list[list[str]], found: dict[str, Any]) -> Any:
    """Show what a benchmark found."""
    machine = found["machine"]
    caption = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}."
    return make_table(summary[0].upper() + summary[1:], rows[0], rows[1:], caption)
