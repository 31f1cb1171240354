"""Command `reproduce`: the paper's tables and figures. Listing them does not import torch."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from protonorm.cli.console import Column, bold, complain, make_table, reporting, say
from protonorm.cli.options import EngineName, NoOwnCode, Out, Quiet, Workers
from protonorm.cli.run import follow
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.reproduction.cells import Study, Table, TableEntry
    from protonorm.reproduction.profiles import Profile
    from protonorm.reproduction.running import Reproduction
    from protonorm.reproduction.writing import Written

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Tables and figures: see --list; `all`; or a file.py of your own."),
]
ProfileName = Annotated[str, typer.Option("--profile", help="How large: paper, cpu or smoke.")]
ProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="Which round is reported: paper, the best test round, as printed; or validated, the one with the best "
        "validation accuracy. The profile's if not given: paper for paper, validated for the others.",
    ),
]
To = Annotated[
    str | None,  # an empty path would mean the current folder
    typer.Option(metavar="PATH", help="Folder for tables and figures; <runs>/reproduction/<profile> if not given."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only cells whose row or column has this text, such as CIFAR-100; repeated, all must match."),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds in place of the profile's, such as 0 or 0,1,2.")]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help="Rounds at most, where the profile has more; written to a folder of its own."),
]
RenderOnly = Annotated[bool, typer.Option("--render-only", help="Run nothing; write what is there.")]
Check = Annotated[bool, typer.Option("--check", help="Fail if a finished cell is outside its tolerance, beyond noise.")]
Listed = Annotated[bool, typer.Option("--list", help="List the tables and figures, and how long each would take.")]

WORDS = {True: "agrees", False: "DIFFERS", None: "not decided"}


def reproduce(
    names: Names = None,
    profile: ProfileName = "cpu",
    protocol: ProtocolName = None,
    out: Out = None,
    to: To = None,
    engine: EngineName = None,
    workers: Workers = None,
    only: Only = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    render_only: RenderOnly = False,
    check: Check = False,
    listed: Listed = False,
    quiet: Quiet = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Reproduce the paper's tables and figures: run missing cells, resume started runs, reuse finished runs."""
    with reporting(quiet=quiet, no_own_code=no_own_code):
        if listed:
            say(listing(names or ["all"]))
            return
        task = reproduction(names or [], profile, protocol, out, to, only or [], seeds, rounds)
        refuse_early(task, engine, workers, run=not render_only, check=check)
        written = task.write() if render_only else task.run(engine, workers, complain, partial(follow, quiet=quiet))
        for path in (path for item in written for path in item.paths if not quiet):
            say(visible(f"Wrote {path}"))
        captions = {""}  # those that need not be printed (again)
        for item in written:
            for table in item.tables:
                say(terminal_table(table, item.findings.profile), captions=not (quiet or table.explanation in captions))
                captions.add(table.explanation)
            for sentence in item.remarks:
                say(visible(f"{item.findings.study.name}: {sentence}"))
        if check:
            judge(written)


def reproduction(
    names: list[str],
    profile: str,
    protocol: str | None,
    out: Path | None,
    to: str | None,
    only: list[str],
    seeds: str | None,
    rounds: int | None,
) -> Reproduction:
    """Build the reproduction from the command's options."""
    from protonorm.reproduction.cells import find_studies, select_cells
    from protonorm.reproduction.profiles import find_profile, find_protocol
    from protonorm.reproduction.running import Reproduction
    from protonorm.runs.layout import runs_root

    if to is not None and not to.strip():
        raise ValueError("--to must be a folder for tables and figures, got an empty text.")
    size, root = find_profile(profile), runs_root(out)
    chosen = find_protocol(size.protocol if protocol is None else protocol)
    place = size.name if chosen.name == size.protocol else f"{size.name}-{chosen.name}"
    if rounds is not None:
        size, place = size.up_to(rounds), f"{place}-{rounds}-rounds"
    command = f"protonorm {shlex.join(sys.argv[1:])}".encode(errors="backslashreplace").decode()  # only valid text
    folder = Path(to) if to else root / "reproduction" / place
    studies, numbers = select_cells(find_studies(names), only), size.seeds if seeds is None else read_seeds(seeds)
    where = {"root": root, "folder": folder}
    return Reproduction(studies, profile=size, protocol=chosen, command=command, seeds=numbers, **where)


def refuse_early(task: Reproduction, engine: str | None, workers: int | None, *, run: bool, check: bool) -> None:
    """Raise an error for invalid options before anything is run or written."""
    from protonorm.engines.choice import check_engine
    from protonorm.reproduction.accuracy import can_check, leads_somebody

    check_engine(engine, workers)
    if check and not any(can_check(study, task.profile, len(task.seeds)) for study in task.studies):
        names, profile = ", ".join(study.name for study in task.studies), repr(task.profile.name)
        if any(leads_somebody(study, task.profile) for study in task.studies):
            raise ValueError(
                f"There is nothing to check: {names} states who should lead under the profile {profile}, "
                "and one seed does not tell a difference from chance. Give several, such as --seeds 0,1,2."
            )
        raise ValueError(
            f"There is nothing to check: {names} states no tolerance for the profile {profile}. "
            "Leave --check out, or choose another profile."
        )
    task.prepare(run=run)


def read_seeds(text: str) -> list[int]:
    """Parse seeds such as 0,1,2."""
    from protonorm.core.text import shortened

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise ValueError(f"--seeds must be whole numbers with commas between them, as 0,1,2, got {shortened(text)}.")
    return list(dict.fromkeys(map(int, parts)))


def judge(written: list[Written]) -> None:
    """Print which numbers agree with the paper, differ or are undecided; raise Failed if any differ."""
    from protonorm.analysis.tables import FEW
    from protonorm.errors import Failed
    from protonorm.reproduction.accuracy import check

    verdicts = [verdict for item in written for verdict in check(item.findings)]
    if not verdicts:
        profile = written[0].findings.profile.name
        raise ValueError(f"There is nothing to check: no finished cell has a tolerance for the profile {profile!r}.")
    for verdict in verdicts:
        say(visible(f"{WORDS[verdict.passed]}: {verdict.sentence}"))
    seeds = {outcome.seed for item in written for outcome in item.findings.outcomes}
    if any(verdict.leads for verdict in verdicts) and len(seeds) < FEW:
        say(f"With fewer than {FEW} seeds intervals may be too narrow: what is said of who leads is a hint.")
    if failed := sum(verdict.passed is False for verdict in verdicts):
        raise Failed(f"{failed} of {len(verdicts)} checks differ from the paper.")


def terminal_table(table: Table, profile: Profile) -> RichTable:
    """Build a table for the terminal; the best test round and the printed number are below ours."""
    columns, before = [Column(table.corner)], ""
    for group, name in table.titled_columns:
        columns.append(Column(f"{visible(group)}\n{visible(name)}" if group != before else visible(name), "right"))
        before = group  # shown above the first of its columns only
    rows = [[bold(row, False), *map(_entry, entries)] for row, entries in table.rows]
    title = f"{profile.stamp}: {table.title}" if profile.stamp else table.title
    return make_table(title, columns, rows, table.explanation)


def _entry(entry: TableEntry) -> Text:
    return Text.assemble(bold(entry.text, entry.bold), *((f"\n{visible(line)}", "dim") for line in entry.lines))


def listing(names: list[str]) -> RichTable:
    """Build the list of tables and figures, with their numbers of runs and estimated times on two cores."""
    from protonorm.reproduction.cells import find_studies
    from protonorm.reproduction.profiles import PROFILES, PROTOCOLS
    from protonorm.reproduction.running import duration, total_seconds, work_left

    def guess(study: Study, profile: Profile) -> str:
        protocol, pairs = PROTOCOLS[profile.protocol], product(study.cells, profile.seeds)
        settings = [study.settings(cell, profile, protocol, seed) for cell, seed in pairs]
        runs = {str(item): work_left(item) for item in settings}  # equal settings are run once
        return duration(total_seconds(runs.values())) if runs else "-"

    rows = [
        [study.name, study.title, str(len(study.cells)), *(guess(study, profile) for profile in PROFILES.values())]
        for study in find_studies(names)
    ]
    columns = [Column("name", no_wrap=True), Column("what it is"), Column("cells", "right")]
    columns += [Column(name, "right", no_wrap=True) for name in PROFILES]
    caption = "Times on two idle cores, each as if nothing were there yet; runs are shared, so that all take less. "
    caption += " ".join(f"{profile.name}: {profile.summary}." for profile in PROFILES.values())
    return make_table("Tables and figures", columns, rows, caption)
