"""The command `show`: runs that are there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, print_json, reporting, say
from protonorm.cli.options import Json, Out
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.runs.reader import Run


def show(
    run: Annotated[str | None, typer.Argument(help="A run's folder or name; all runs if not given.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show the runs in a folder, or one run."""
    with reporting():
        from protonorm.analysis.comparison import rows
        from protonorm.analysis.reading import read_some, read_whole
        from protonorm.analysis.summaries import plain_run
        from protonorm.cli.run_tables import comparison_table, runs_table
        from protonorm.runs.layout import find_run, find_runs, runs_root

        root = runs_root(out)
        if run is None:
            runs = read_some(find_runs(root), complain)
            if as_json:
                print_json({"runs": [plain_run(one) for one in runs]})
            else:
                say(runs_table(runs) if runs else visible(f"There are no runs in {root}."))
            return
        found = read_whole(find_run(root, run))
        if as_json:
            print_json(plain_run(found) | {"history": [record.model_dump(mode="json") for record in found.rounds]})
        else:
            say(comparison_table(found.info.key, rows({found.info.experiment.algorithm.name: [found]})))
            say(run_lines(found))


def run_lines(run: Run) -> str:
    """Show one run's curve, how it stands, and its settings."""
    from protonorm.analysis.summaries import standing
    from protonorm.cli.run_tables import curve

    rule = run.info.headline
    values = [record.rules.get(rule) for record in run.rounds]
    lines = [
        f"Pooled accuracy in per cent, rule {visible(rule)}:",
        curve([value.pooled if value else None for value in values]),
        visible(standing(run)),
        *(f"{visible(name)}: {json.dumps(value)}" for name, value in run.info.experiment.plain().items()),
        f"versions: {json.dumps(run.info.versions)}",
    ]
    return "\n".join(lines)
