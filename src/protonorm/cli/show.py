"""The command `show`: runs that are there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, page_width, print_json, reporting, say
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
        from protonorm.cli.run_tables import comparison_tables, runs_table
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
            table = rows({found.info.experiment.algorithm.name: [found]})
            say(comparison_tables(found.info.key, table, page_width())[0])
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
        visible(reported_round(run)),
        samples_line(run),
        *(f"{visible(name)}: {json.dumps(value)}" for name, value in run.info.experiment.plain().items()),
        f"versions: {json.dumps(run.info.versions)}",
        *map(visible, provenance_lines(run)),
    ]
    return "\n".join(lines)


def reported_round(run: Run) -> str:
    """Say which round is reported and how it was chosen, and what would end the run early."""
    if run.chosen is None:
        return "No round is reported yet: nobody was evaluated under the method's headline rule."
    record, by, rule = run.chosen.record, run.chosen.by, run.info.headline
    ways = {
        "validation": "it has the best mean validation accuracy",
        "test": "it has the best test accuracy, which is optimistic: there is no validation part",
        "last": "it is the last that was evaluated; there is none in which everybody was",
    }
    validated, tested = record.validation.get(rule), record.rules.get(rule)
    numbers = [f"{100 * validated.mean:.2f} % on validation (mean over clients)"] if validated else []
    numbers += [f"{100 * tested.pooled:.2f} % on test (pooled)"] if tested else []
    patience = run.info.early_stopping
    early = f" The run ends early after {patience} evaluations without a better one." if patience else ""
    return f"Round {record.round} is reported: {ways[by]}; {rule} {', '.join(numbers)}.{early}"


def samples_line(run: Run) -> str:
    """Say how many samples clients train, validate and test on."""
    train, validation, test = (int(part.sum()) for part in run.population)
    held = f"{validation} to validate on" if validation else "no validation part"
    return f"Samples of all clients: {train} to train on, {held}, {test} to test on."


def provenance_lines(run: Run) -> list[str]:
    """Say by which command a run was begun, at which commit of the user's repository, and on what machine."""
    found, lost = run.provenance, [run.lost_provenance] if run.lost_provenance else []
    if found is None:
        return lost
    changed = ", files changed since" if found.dirty else ""
    commit = (
        f"commit: {found.commit}{changed}" if found.commit else "commit: none, the command was given in no repository"
    )
    machine = f"machine: {found.cpu}, {found.cores} cores, {found.threads} threads a process, engine {found.engine}"
    return [f"command: {found.command}", commit, machine, *lost]
