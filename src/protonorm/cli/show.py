"""The command `show`: runs that are there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import page_width, print_json, reporting, say
from protonorm.cli.options import Json, Out
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.runs.run import Run


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN_OR_FILTER]",
        help="A run's folder or name, for all about it; several, or filters such as dataset=fashion seed=0,1 "
        "state=unfinished, for a list; all runs if not given.",
    ),
]


Csv = Annotated[bool, typer.Option("--csv", help="Print a line for each client of these runs, as CSV.")]


def show(words: Words = None, out: Out = None, as_json: Json = False, as_csv: Csv = False) -> None:
    """List runs and say in what they differ, or show one run and its clients."""
    with reporting():
        from protonorm.analysis.reading import read_whole
        from protonorm.analysis.summaries import plain_run
        from protonorm.cli.client_table import clients_csv
        from protonorm.cli.run_tables import runs_table
        from protonorm.cli.selection import sort_words, wanted_runs
        from protonorm.runs.layout import find_run, runs_root

        if as_json and as_csv:
            raise ValueError("One of --json and --csv can be printed, not both.")
        root = runs_root(out)
        wanted = sort_words(words or [], root)
        if len(wanted.names) == 1 and not wanted.filters and not as_csv:
            _show_one(read_whole(find_run(root, wanted.names[0])), as_json=as_json)
            return
        runs = wanted_runs(wanted, root)
        if as_csv:
            sys.stdout.write(clients_csv(runs))
        elif as_json:
            print_json({"runs": [plain_run(one) for one in runs]})
        elif runs:
            say(runs_table(runs, page_width()))
        else:
            such = f" with {' '.join(wanted.filters)}" if wanted.filters else ""
            say(visible(f"There are no runs{such} in {root}."))


def _show_one(run: Run, *, as_json: bool) -> None:
    from protonorm.analysis.alone import local_beside
    from protonorm.analysis.comparison import rows
    from protonorm.analysis.summaries import plain_run
    from protonorm.cli.client_table import clients_table, plain_clients
    from protonorm.cli.run_tables import comparison_tables

    if as_json:
        history = [record.model_dump(mode="json") for record in run.rounds]
        print_json(plain_run(run) | {"clients": plain_clients(run, local_beside(run)), "history": history})
        return
    table = rows({run.info.experiment.algorithm.name: [run]})
    say(comparison_tables(run.info.key, table, page_width())[0])
    say(clients_table(run, local_beside(run)))
    say(run_lines(run))


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
    record, rule = run.chosen.record, run.info.headline
    validated, tested = record.validation.get(rule), record.rules.get(rule)
    numbers = [f"{100 * validated.mean:.2f} % on validation (mean over clients)"] if validated else []
    numbers += [f"{100 * tested.pooled:.2f} % on test (pooled)"] if tested else []
    patience = run.info.early_stopping
    early = f" The run ends early after {patience} evaluations without a better one." if patience else ""
    return f"Round {record.round} is reported: {run.chosen.why}; {rule} {', '.join(numbers)}.{early}"


def samples_line(run: Run) -> str:
    """Say how many samples clients train, validate and test on."""
    if not run.knows_samples:
        return "Samples: their number is not on record; each client knows its own."
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
