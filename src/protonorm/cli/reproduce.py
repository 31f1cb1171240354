"""Command `reproduce`: the paper's tables and figures. Listing them does not import torch."""

import shlex
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from protonorm.cli.console import Column, bold, complain, make_table, reporting, say
from protonorm.cli.options import EngineName, NoOwnCode, Out, Quiet, Workers
from protonorm.cli.run import follow
from protonorm.core.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from experiments.reproduction.accuracy import Verdict
    from experiments.reproduction.cells import Study, Table, TableEntry
    from experiments.reproduction.findings import Findings
    from experiments.reproduction.profiles import Profile
    from experiments.reproduction.running import Reproduction
    from experiments.reproduction.writing import Written

NAMES = "Tables and figures: see --list; `all`; or a file.py of your own."
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help=NAMES)]
ProfileName = Annotated[str, typer.Option("--profile", help="How large: paper, cpu or smoke.")]
PROTOCOL = (
    "Which round is reported: paper, the best test round, as printed; or validated, the one with the best "
    "validation accuracy. The profile's if not given: paper for paper, validated for the others."
)
ProtocolName = Annotated[str | None, typer.Option("--protocol", help=PROTOCOL)]
TO = "Folder for tables and figures; <runs>/reproduction/<profile> if not given."
To = Annotated[str | None, typer.Option(metavar="PATH", help=TO)]  # an empty path would mean the current folder
ONLY = "Only cells whose row or column has this text, such as CIFAR-100; repeated, all must match."
Only = Annotated[list[str] | None, typer.Option(help=ONLY)]
Seeds = Annotated[str | None, typer.Option(help="Seeds in place of the profile's, such as 0 or 0,1,2.")]
ROUNDS = "Rounds at most, where the profile has more; written to a folder of its own."
Rounds = Annotated[int | None, typer.Option(min=1, help=ROUNDS)]
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
        command = f"protonorm {shlex.join(sys.argv[1:])}"
        options = (profile, protocol, out, to, only or [], seeds, rounds, command)
        task: Reproduction = machinery("running").reproduction(names or [], *options)
        task.prepare(engine, workers, run=not render_only, check=check)
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


def machinery(module: str) -> "ModuleType":
    """Import a module of `experiments.reproduction`, which lies beside the library in a checkout."""
    from protonorm.config.kinds import bundled

    return import_module(f"{bundled('experiments').__name__}.reproduction.{module}")


def judge(written: "list[Written]") -> None:
    """Print which numbers agree with the paper, differ or are undecided; raise Failed if any differ."""
    from protonorm.analysis.tables import FEW
    from protonorm.errors import Failed

    check: Callable[[Findings], list[Verdict]] = machinery("accuracy").check
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


def terminal_table(table: "Table", profile: "Profile") -> RichTable:
    """Build a table for the terminal; the best test round and the printed number are below ours."""
    columns, before = [Column(table.corner)], ""
    for group, name in table.titled_columns:
        columns.append(Column(f"{visible(group)}\n{visible(name)}" if group != before else visible(name), "right"))
        before = group  # shown above the first of its columns only
    rows = [[bold(row, False), *map(_entry, entries)] for row, entries in table.rows]
    title = f"{profile.stamp}: {table.title}" if profile.stamp else table.title
    return make_table(title, columns, rows, table.explanation)


def _entry(entry: "TableEntry") -> Text:
    return Text.assemble(bold(entry.text, entry.bold), *((f"\n{visible(line)}", "dim") for line in entry.lines))


def listing(names: list[str]) -> RichTable:
    """Build the list of tables and figures, with their numbers of runs and estimated times on two cores."""
    profiles: dict[str, Profile] = machinery("profiles").PROFILES
    studies: list[Study] = machinery("cells").find_studies(names)
    guess: Callable[[Study, Profile], str] = machinery("running").guess
    rows = [
        [study.name, study.title, str(len(study.cells)), *(guess(study, size) for size in profiles.values())]
        for study in studies
    ]
    columns = [Column("name", no_wrap=True), Column("what it is"), Column("cells", "right")]
    columns += [Column(name, "right", no_wrap=True) for name in profiles]
    caption = "Times on two idle cores, each as if nothing were there yet; runs are shared, so that all take less. "
    caption += " ".join(f"{profile.name}: {profile.summary}." for profile in profiles.values())
    return make_table("Tables and figures", columns, rows, caption)
