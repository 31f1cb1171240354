"""The command `reproduce`: the paper's tables and figures. Listing them does without torch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from protonorm.cli.console import complain, reporting, say
from protonorm.cli.options import EngineName, NoOwnCode, Out, Workers
from protonorm.cli.tables import Column, bold, make_table
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.cli.progress import RoundDisplay
    from protonorm.config.experiment import Experiment
    from protonorm.reproduction.profiles import Profile
    from protonorm.reproduction.running import Reproduction
    from protonorm.reproduction.tables import Table, TableEntry
    from protonorm.reproduction.writing import Written

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Tables and figures: see --list; `all`; or a file.py of your own."),
]
ProfileName = Annotated[str, typer.Option("--profile", help="How large: paper, cpu or smoke.")]
To = Annotated[
    str | None,  # an empty path would pass for the current folder
    typer.Option(metavar="PATH", help="Folder for tables and figures; <runs>/reproduction/<profile> if not given."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Run and show only cells whose row or column has this text, such as CIFAR-100; a whole name means only "
        "that. May be repeated: a cell must then match all of them. The part is written under a name of its own."
    ),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds in place of the profile's, such as 0 or 0,1,2.")]
RenderOnly = Annotated[bool, typer.Option("--render-only", help="Run nothing; write what is there.")]
Check = Annotated[bool, typer.Option("--check", help="Fail if a finished cell is outside the stated tolerance.")]
Listed = Annotated[bool, typer.Option("--list", help="List the tables and figures, and how long each would take.")]


def reproduce(
    names: Names = None,
    profile: ProfileName = "cpu",
    out: Out = None,
    to: To = None,
    engine: EngineName = None,
    workers: Workers = None,
    only: Only = None,
    seeds: Seeds = None,
    render_only: RenderOnly = False,
    check: Check = False,
    listed: Listed = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Make the paper's tables and figures again: run what is missing, resume what was begun, use what is done."""
    with reporting(no_own_code=no_own_code):
        if listed:
            say(listing(names or ["all"]))
            return
        task = reproduction(names or [], profile, out, to, only or [], seeds)
        refuse_early(task, engine, run=not render_only, check=check)
        written = task.write() if render_only else task.run(engine, workers, complain, follow)
        for path in (path for one in written for path in one.paths):
            say(visible(f"Wrote {path}"))
        for one in written:
            show(one)
        if check:
            judge(written)


def reproduction(
    names: list[str], profile: str, out: Path | None, to: str | None, only: list[str], seeds: str | None
) -> Reproduction:
    """Put together what is to be made."""
    from protonorm.reproduction.profiles import find_profile
    from protonorm.reproduction.running import Reproduction
    from protonorm.reproduction.selection import select_cells
    from protonorm.reproduction.study import find_studies
    from protonorm.runs.layout import runs_root

    if to is not None and not to.strip():
        raise ValueError("--to with an empty text is refused: expected a folder for tables and figures.")
    size, root = find_profile(profile), runs_root(out)
    command = f"protonorm {shlex.join(sys.argv[1:])}"
    return Reproduction(
        studies=select_cells(find_studies(names), only),
        profile=size,
        root=root,
        folder=Path(to) if to else root / "reproduction" / size.name,
        command=command.encode(errors="backslashreplace").decode(),  # bytes that are no text stay out of our files
        seeds=size.seeds if seeds is None else read_seeds(seeds),
    )


def refuse_early(task: Reproduction, engine: str | None, *, run: bool, check: bool) -> None:
    """Refuse what cannot be done before anything is run or written."""
    from protonorm.core.registry import find
    from protonorm.engines import ENGINES
    from protonorm.reproduction.checking import can_check

    if engine is not None:
        find(ENGINES, engine, "engine")
    if check and not any(can_check(study, task.profile) for study in task.studies):
        raise ValueError(
            f"There is nothing to check: {', '.join(study.name for study in task.studies)} states no tolerance "
            f"for the profile {task.profile.name!r}. Leave --check out, or choose another profile."
        )
    task.prepare(run=run)


def read_seeds(text: str) -> list[int]:
    """Read seeds such as 0,1,2."""
    from protonorm.core.types import shortened

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise ValueError(
            f"--seeds {shortened(text)} is refused: expected whole numbers with commas between them, such as 0,1,2."
        )
    return list(dict.fromkeys(map(int, parts)))


def follow(experiment: Experiment) -> RoundDisplay:
    """Show the rounds of an experiment while it runs."""
    from protonorm.cli.progress import RoundDisplay

    return RoundDisplay(experiment.key, experiment.rounds, experiment.algorithm.headline)


def show(written: Written) -> None:
    """Show the tables of a study in the terminal, and say what is missing."""
    for table in written.tables:
        say(terminal_table(table, written.findings.profile))
    for sentence in written.remarks:
        say(visible(f"{written.findings.study.name}: {sentence}"))


def terminal_table(table: Table, profile: Profile) -> RichTable:
    """Lay out a table for the terminal; what the paper prints stands below ours."""
    columns, before = [Column(table.corner)], ""
    for group, name in table.titled_columns:
        columns.append(Column(f"{visible(group)}\n{visible(name)}" if group != before else visible(name), "right"))
        before = group  # stands above the first of its columns only
    rows = [[bold(row, False), *map(_entry, entries)] for row, entries in table.rows]
    stamp = f"{profile.stamp}: " if profile.stamp else ""
    return make_table(stamp + table.title, columns, rows, table.explanation)


def _entry(entry: TableEntry) -> Text:
    shown = bold(entry.text, entry.bold)
    return Text.assemble(shown, "\n", (visible(entry.below), "dim")) if entry.below else shown


def judge(written: list[Written]) -> None:
    """Say what agrees with the paper and what does not; end with an error if something does not."""
    from protonorm.errors import Failed
    from protonorm.reproduction.checking import check

    verdicts = [verdict for one in written for verdict in check(one.findings)]
    if not verdicts:
        profile = written[0].findings.profile.name
        raise ValueError(f"There is nothing to check: no finished cell has a tolerance for the profile {profile!r}.")
    for verdict in verdicts:
        say(visible(f"{'agrees' if verdict.passed else 'DIFFERS'}: {verdict.sentence}"))
    failed = sum(not verdict.passed for verdict in verdicts)
    if failed:
        raise Failed(f"{failed} of {len(verdicts)} checks differ from the paper.")


def listing(names: list[str]) -> RichTable:
    """List tables and figures: how many runs each has, and about how long they take on two cores."""
    from protonorm.reproduction.estimate import duration, total_seconds, work_left
    from protonorm.reproduction.profiles import PROFILES
    from protonorm.reproduction.study import find_studies

    rows = []
    for study in find_studies(names):
        guesses = []
        for profile in PROFILES.values():
            settings = [study.settings(cell, profile, seed) for cell in study.cells for seed in profile.seeds]
            runs = {str(one): work_left(one) for one in settings}  # equal settings are run once
            guesses.append(duration(total_seconds(runs.values())) if runs else "-")
        rows.append([study.name, study.title, str(len(study.cells)), *guesses])
    return make_table(
        "Tables and figures",
        [Column("name", no_wrap=True), Column("what it is"), Column("cells", "right"),
         *(Column(name, "right", no_wrap=True) for name in PROFILES)],
        rows,
        "Guesses for two cores that nobody else uses, each as if nothing were there yet: runs are shared, so that all "
        "together take less. " + " ".join(f"{one.name}: {one.summary}." for one in PROFILES.values()),
    )  # fmt: skip
