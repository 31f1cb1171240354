"""Commands `show`, `report`, `remove` and `archive`, for recorded runs."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, page_width, print_json, reporting, say
from protonorm.cli.options import Json, Out, PushTo, Wanted, path_option
from protonorm.core.text import counted, visible

if TYPE_CHECKING:
    from protonorm.runs.run import Run

WORDS = "One run, for all about it; several, or filters such as dataset=fashion seed=0,1, for a list; else all."
Words = Annotated[list[str] | None, typer.Argument(metavar="[RUN_OR_FILTER]", help=WORDS)]
Csv = Annotated[bool, typer.Option("--csv", help="Print a line for each client of these runs, as CSV.")]
Names = Annotated[list[str], typer.Argument(metavar="RUN", help="Runs: folders, names, or beginnings of names.")]
To = Annotated[Path | None, typer.Option(help="File; report.html in a run's folder, or <runs>/reports/… if not given.")]
LONGEST = 60  # maximum bytes of a file's name, without its hash
NAMED = 5  # maximum foreign files named
LOGGED = re.compile(r"events\.out\.tfevents\..+|projector_config\.pbtxt|metadata\.tsv|tensors\.tsv|sprite\.png")

CHOSEN = "Folders or names of runs; or filters: algorithm=local state=unfinished."
Chosen = Annotated[list[str], typer.Argument(metavar="RUN_OR_FILTER", help=CHOSEN)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
Place = Annotated[Path, path_option("Folder for the archived records, packed into one file.", "--to", metavar="FOLDER")]
CLIENTS = "Also keep the trained clients, the server's state and all prototypes."
WithClients = Annotated[bool, typer.Option("--with-clients", help=CLIENTS)]


def show(words: Words = None, out: Out = None, as_json: Json = False, as_csv: Csv = False) -> None:
    """List runs and the settings in which they differ, or show one run and its clients."""
    with reporting():
        from protonorm.analysis.breakdown import plain_run
        from protonorm.cli.run_tables import clients_csv, runs_table
        from protonorm.runs.layout import find_run
        from protonorm.runs.run import read_whole

        if as_json and as_csv:
            raise ValueError("One of --json and --csv can be printed, not both.")
        selection = Wanted.of(words or [], out)
        if len(selection.names) == 1 and not selection.filters and not as_csv:
            _show_one(read_whole(find_run(selection.root, selection.names[0])), as_json=as_json)
            return
        runs = selection.runs()
        if as_csv:
            sys.stdout.write(clients_csv(runs))
        elif as_json:
            print_json({"runs": [plain_run(run) for run in runs]})
        elif runs:
            say(runs_table(runs, page_width()))
        else:
            such = f" with {' '.join(selection.filters)}" if selection.filters else ""
            say(visible(f"There are no runs{such} in {selection.root}."))


def _show_one(run: "Run", *, as_json: bool) -> None:
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


def run_lines(run: "Run") -> str:
    """Format one run's curve, its state, and its settings."""
    from protonorm.analysis.breakdown import standing
    from protonorm.cli.run_tables import curve

    values = [record.rules.get(run.info.headline) for record in run.rounds]
    lines = [f"Pooled accuracy in per cent, rule {visible(run.info.headline)}:"]
    lines += [curve([value.pooled if value else None for value in values]), visible(standing(run))]
    lines += [visible(reported_round(run)), samples_line(run)]
    lines += [visible(run.of_owners)] if run.of_owners else []
    lines += [f"{visible(name)}: {json.dumps(value)}" for name, value in run.info.experiment.plain().items()]
    lines += [f"versions: {json.dumps(run.info.versions)}"]
    if origin := run.provenance:  # the command, the commit of the user's repository, and the machine
        commit = origin.commit or "none, the command was given in no repository"
        changed = ", files changed since" if origin.commit and origin.dirty else ""
        machine = f"{origin.cpu}, {origin.cores} cores, {origin.threads} threads a process, engine {origin.engine}"
        lines += map(visible, [f"command: {origin.command}", f"commit: {commit}{changed}", f"machine: {machine}"])
    return "\n".join([*lines, *([run.lost_provenance] if run.lost_provenance else [])])


def reported_round(run: "Run") -> str:
    """Describe the reported round, how it was chosen, and the early-stopping setting."""
    if run.chosen is None:
        return "No round is reported yet: no client was evaluated under the method's headline rule."
    record, rule = run.chosen.record, run.info.headline
    validated, tested = record.validation.get(rule), record.rules.get(rule)
    numbers = [f"{100 * validated.mean:.2f} % on validation (mean over clients)"] if validated else []
    numbers += [f"{100 * tested.pooled:.2f} % on test (pooled)"] if tested else []
    patience = run.info.early_stopping
    early = f" The run ends early after {patience} evaluations without a better one." if patience else ""
    return f"Round {record.round} is reported: {run.chosen.why}; {rule} {', '.join(numbers)}.{early}"


def samples_line(run: "Run") -> str:
    """Describe how many samples clients train, validate and test on."""
    if not run.knows_samples:
        return "Samples: their number is not on record; each client knows its own."
    train, validation, test = (int(part.sum()) for part in run.population)
    held_out = f"{validation} to validate on" if validation else "no validation part"
    return f"Samples of all clients: {train} to train on, {held_out}, {test} to test on."


def report(runs: Names, out: Out = None, to: To = None) -> None:
    """Write one self-contained HTML file about a run, or comparing several; it needs no network access."""
    with reporting():
        from protonorm.report.page import write_page
        from protonorm.runs.layout import find_run, runs_root
        from protonorm.runs.run import read_some, read_whole

        root = runs_root(out)
        folders = [find_run(root, name) for name in runs]
        read = [read_whole(folders[0])] if len(folders) == 1 else read_some(folders, complain)
        if not read:
            raise ValueError(f"None of these {len(folders)} runs can be read: there is nothing to report.")
        say(visible(f"Report: {write_page(read, to or default_place(read, root))}"))


def default_place(runs: "Sequence[Run]", root: Path) -> Path:
    """Return the default path of a page: in its run's folder, or among the reports under a descriptive name."""
    if len(runs) == 1:
        return runs[0].folder / "report.html"
    keys = sorted(run.folder.resolve().name for run in runs)
    words = "-".join(dict.fromkeys(re.sub(r"[^\w.-]+", "-", key.rsplit("-seed", 1)[0]) for key in keys))
    mark = hashlib.sha256("\n".join(keys).encode(errors="backslashreplace")).hexdigest()[:10]
    return root / "reports" / f"{words.encode()[:LONGEST].decode(errors='ignore')}-{mark}.html"


def remove(words: Chosen, out: Out = None, yes: Yes = False) -> None:
    """Remove runs after confirmation: their records and trained clients. Files not written by protonorm are kept."""
    with reporting():
        from protonorm.cli.run_tables import runs_table
        from protonorm.runs.archive import refuse_others, remove_runs
        from protonorm.runs.run import UNREADABLE, read_whole

        selection = Wanted.of(words, out)
        runs = selection.runs("nothing was removed") if selection.filters else []
        damaged: list[Path] = []
        for folder in [] if selection.filters else selection.folders():
            try:
                runs.append(read_whole(folder))
            except UNREADABLE:  # damaged runs may be removed too
                damaged.append(folder)
        folders = [*(run.folder for run in runs), *damaged]
        for folder in folders:
            refuse_others(folder)
        if runs:
            say(runs_table(runs, page_width()))
        for folder in damaged:
            say(visible(f"{folder} cannot be read."))
        if not yes:
            ask(len(folders))
        kept = remove_runs(folders, own_extras)
        say(f"Removed {counted(len(folders), 'run')}.")
        for folder, files in ((folder, files) for folder, files in kept.items() if files):
            names = ", ".join(str(path.relative_to(folder)) for path in files[:NAMED])
            further = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
            say(visible(f"Kept in {folder}, as no part of the run: {names}{further}."))


def archive(
    words: Chosen, to: Place, out: Out = None, with_clients: WithClients = False, push_to: PushTo = None
) -> None:
    """Pack the records of runs into one file, without networks; commands such as `show --out FOLDER` read it."""
    with reporting():
        from protonorm.runs.archive import archive_runs, refuse_place

        selection = Wanted.of(words, out)
        filtered = selection.runs("nothing was archived") if selection.filters else []
        folders = [run.folder for run in filtered] or selection.folders()
        refuse_place(to, folders, selection.root)
        archived = archive_runs(folders, to, with_clients=with_clients)
        for item in archived:
            say(visible(f"{item.folder.name}: {item.rounds} of {item.asked} rounds, {kilobytes(item.size)}"))
        size = kilobytes(sum(item.size for item in archived))
        say(visible(f"Archived {counted(len(archived), 'run')} in {to}: {size}."))
        if push_to:
            from protonorm.runs.hub import upload
            from protonorm.runs.layout import RECORDS

            say(f"Uploaded: {upload(to, push_to, 'dataset', (RECORDS,))}")


def ask(count: int) -> None:
    """Ask for confirmation; raise a ValueError without an answer, and exit if the answer is no."""
    sys.stderr.write(f"Remove {counted(count, 'run')}? What is removed is gone. [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise ValueError("No answer, and nothing was removed; --yes removes without asking.")
    if answer.strip().lower() not in ("y", "yes"):
        say("Nothing was removed.")
        raise typer.Exit


def own_extras(folder: Path) -> list[Path]:
    """List protonorm's files beside a run's record: its report, and the log for TensorBoard."""
    from protonorm.report.page.write import is_page  # slow to import

    pages, log = (folder / "report.html", folder / "leakage.html"), folder / "tensorboard"  # of the tracker
    extras = [page for page in pages if page.exists() and is_page(page)]
    if not log.is_symlink():
        logs = (Path(directory, name) for directory, _, names in os.walk(log) for name in names)
        extras += [path for path in logs if LOGGED.fullmatch(path.name)]
    return extras


def kilobytes(size: int) -> str:
    """Format a number of bytes as kB, rounded up."""
    return f"{-(-size // 1000):,} kB"
