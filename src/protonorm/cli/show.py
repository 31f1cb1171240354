"""Commands `show` and `report`: display recorded runs."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, page_width, print_json, reporting, say
from protonorm.cli.options import Json, Out, Wanted
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
Names = Annotated[list[str], typer.Argument(metavar="RUN", help="Runs: folders, names, or beginnings of names.")]
To = Annotated[
    Path | None,
    typer.Option(help="File to write; if not given, report.html in a run's folder, or <runs>/reports/… for several."),
]
LONGEST = 60  # maximum bytes of a file's name, without its hash


def show(words: Words = None, out: Out = None, as_json: Json = False, as_csv: Csv = False) -> None:
    """List runs and the settings in which they differ, or show one run and its clients."""
    with reporting():
        from protonorm.analysis.breakdown import plain_run
        from protonorm.cli.run_tables import clients_csv, runs_table
        from protonorm.runs.layout import find_run
        from protonorm.runs.run import read_whole

        if as_json and as_csv:
            raise ValueError("One of --json and --csv can be printed, not both.")
        wanted = Wanted.of(words or [], out)
        if len(wanted.names) == 1 and not wanted.filters and not as_csv:
            _show_one(read_whole(find_run(wanted.root, wanted.names[0])), as_json=as_json)
            return
        runs = wanted.runs()
        if as_csv:
            sys.stdout.write(clients_csv(runs))
        elif as_json:
            print_json({"runs": [plain_run(one) for one in runs]})
        elif runs:
            say(runs_table(runs, page_width()))
        else:
            such = f" with {' '.join(wanted.filters)}" if wanted.filters else ""
            say(visible(f"There are no runs{such} in {wanted.root}."))


def _show_one(run: Run, *, as_json: bool) -> None:
    from protonorm.analysis.breakdown import local_beside, plain_run
    from protonorm.analysis.comparison import rows
    from protonorm.cli.run_tables import clients_table, comparison_tables, plain_clients

    if as_json:
        history = [record.model_dump(mode="json") for record in run.rounds]
        print_json(plain_run(run) | {"clients": plain_clients(run, local_beside(run)), "history": history})
        return
    table = rows({run.info.experiment.algorithm.name: [run]})
    say(comparison_tables(run.info.key, table, page_width())[0])
    say(clients_table(run, local_beside(run)))
    say(run_lines(run))


def run_lines(run: Run) -> str:
    """Format one run's curve, its state, and its settings."""
    from protonorm.analysis.breakdown import standing
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
    """Describe the reported round, how it was chosen, and the early-stopping setting."""
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
    """Describe how many samples clients train, validate and test on."""
    if not run.knows_samples:
        return "Samples: their number is not on record; each client knows its own."
    train, validation, test = (int(part.sum()) for part in run.population)
    held = f"{validation} to validate on" if validation else "no validation part"
    return f"Samples of all clients: {train} to train on, {held}, {test} to test on."


def provenance_lines(run: Run) -> list[str]:
    """Return the command that started a run, the commit of the user's repository, and the machine."""
    found, lost = run.provenance, [run.lost_provenance] if run.lost_provenance else []
    if found is None:
        return lost
    changed = ", files changed since" if found.dirty else ""
    commit = (
        f"commit: {found.commit}{changed}" if found.commit else "commit: none, the command was given in no repository"
    )
    machine = f"machine: {found.cpu}, {found.cores} cores, {found.threads} threads a process, engine {found.engine}"
    return [f"command: {found.command}", commit, machine, *lost]


def report(runs: Names, out: Out = None, to: To = None) -> None:
    """Write one self-contained HTML file about a run, or comparing several; it needs no network access."""
    with reporting():
        from protonorm.report.page import write_page
        from protonorm.runs.layout import find_run, runs_root
        from protonorm.runs.run import read_some, read_whole

        root = runs_root(out)
        folders = [find_run(root, name) for name in runs]
        found = [read_whole(folders[0])] if len(folders) == 1 else read_some(folders, complain)
        if not found:
            raise ValueError(f"None of these {len(folders)} runs can be read: there is nothing to report.")
        say(visible(f"Report: {write_page(found, to or default_place(found, root))}"))


def default_place(runs: Sequence[Run], root: Path) -> Path:
    """Return the default path of a page: in its run's folder, or among the reports under a descriptive name."""
    if len(runs) == 1:
        return runs[0].folder / "report.html"
    keys = sorted(run.folder.resolve().name for run in runs)
    words = "-".join(dict.fromkeys(re.sub(r"[^\w.-]+", "-", key.rsplit("-seed", 1)[0]) for key in keys))
    mark = hashlib.sha256("\n".join(keys).encode(errors="backslashreplace")).hexdigest()[:10]
    return root / "reports" / f"{words.encode()[:LONGEST].decode(errors='ignore')}-{mark}.html"
