"""The command `reproduce`: the paper's tables and figures. Listing them does without torch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.console import complain, reporting, say

if TYPE_CHECKING:
    from protonorm.reproduction.running import Reproduction

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Tables and figures: see --list; `all`; or a file.py of your own."),
]
ProfileName = Annotated[str, typer.Option("--profile", help="How large: paper, cpu or smoke.")]
Out = Annotated[Path | None, typer.Option(help="Folder of all runs; PROTONORM_RUNS or ./runs if not given.")]
To = Annotated[
    str | None,  # an empty path would pass for the current folder
    typer.Option(metavar="PATH", help="Folder for tables and figures; <runs>/reproduction/<profile> if not given."),
]
EngineName = Annotated[str | None, typer.Option("--engine", help="Where clients live: see `protonorm list engines`.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores if not given.")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Run and show only cells whose row or column has this text, such as CIFAR-100; a whole name means only "
        "that. May be repeated: a cell must then fit all of them. The part is written under a name of its own."
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
) -> None:
    """Make the paper's tables and figures again: run what is missing, resume what was begun, use what is done."""
    with reporting():
        if listed:
            say(listing(names or ["all"]))
            return
        task = reproduction(names or [], profile, out, to, only or [], seeds)
        refuse_early(task, engine, check=check)
        for path in task.write() if render_only else task.run(engine, workers, complain):
            say(f"Wrote {path}")
        show(task)
        if check:
            judge(task)


def reproduction(
    names: list[str], profile: str, out: Path | None, to: str | None, only: list[str], seeds: str | None
) -> Reproduction:
    """Put together what is to be made."""
    from protonorm.history import runs_root
    from protonorm.reproduction.choosing import narrowed
    from protonorm.reproduction.profiles import find_profile
    from protonorm.reproduction.running import Reproduction
    from protonorm.reproduction.study import find_studies

    if to is not None and not to.strip():
        raise ValueError("--to with an empty text is refused: expected a folder for tables and figures.")
    size, root = find_profile(profile), runs_root(out)
    return Reproduction(
        studies=narrowed(find_studies(names), only),
        profile=size,
        root=root,
        folder=Path(to) if to else root / "reproduction" / size.name,
        command=f"protonorm {shlex.join(sys.argv[1:])}",
        seeds=size.seeds if seeds is None else read_seeds(seeds),
    )


def refuse_early(task: Reproduction, engine: str | None, *, check: bool) -> None:
    """Refuse what cannot be done before anything is run or written."""
    from protonorm.engines import ENGINES
    from protonorm.registry import find
    from protonorm.reproduction.checking import checkable

    if engine is not None:
        find(ENGINES, engine, "engine")
    if check and not any(checkable(study, task.profile) for study in task.studies):
        raise ValueError(
            f"There is nothing to check: {', '.join(study.name for study in task.studies)} states no tolerance "
            f"for the profile {task.profile.name!r}. Leave --check out, or choose another profile."
        )
    task.prepare()


def read_seeds(text: str) -> list[int]:
    """Read 0,1,2."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"--seeds {text} is refused: expected whole numbers with commas between them, such as 0,1,2.")
    return list(dict.fromkeys(map(int, parts)))


def show(task: Reproduction) -> None:
    """Show the tables in the terminal, and what is missing."""
    from protonorm.reproduction.terminal import terminal_table
    from protonorm.reproduction.writing import remarks, tables_of

    for study in task.studies:
        found = task.findings(study)
        for table in tables_of(found):
            say(terminal_table(table, found.profile))
        for sentence in remarks(found):
            say(f"{study.name}: {sentence}")


def judge(task: Reproduction) -> None:
    """Say what agrees with the paper and what does not; end with an error if something does not."""
    from protonorm.errors import Failed
    from protonorm.reproduction.checking import check

    verdicts = [verdict for study in task.studies for verdict in check(task.findings(study))]
    if not verdicts:
        raise ValueError(
            f"There is nothing to check: no finished cell has a tolerance for the profile {task.profile.name!r}."
        )
    for verdict in verdicts:
        say(f"{'agrees' if verdict.passed else 'DIFFERS'}: {verdict.sentence}")
    failed = sum(not verdict.passed for verdict in verdicts)
    if failed:
        raise Failed(f"{failed} of {len(verdicts)} checks differ from the paper.")


def listing(names: list[str]) -> Any:
    """List tables and figures: how many runs each has, and about how long they take on two cores."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from protonorm.reproduction.estimate import clock, seconds, work
    from protonorm.reproduction.profiles import PROFILES
    from protonorm.reproduction.study import find_studies

    table = Table(title="Tables and figures", box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    table.add_column("cells", justify="right")
    for profile in PROFILES.values():
        table.add_column(profile.name, justify="right", no_wrap=True)
    for study in find_studies(names):
        guesses = []
        for profile in PROFILES.values():
            runs = {str(settings): work(settings) for cell in study.cells for seed in profile.seeds
                    if (settings := study.settings(cell, profile, seed))}  # fmt: skip
            guesses.append(clock(seconds(runs.values())) if runs else "-")
        table.add_row(study.name, study.title, str(len(study.cells)), *guesses)
    table.caption = (
        "Guesses for two cores that nobody else uses, each as if nothing were there yet: runs are shared, so that all "
        "together take less. " + " ".join(f"{one.name}: {one.summary}." for one in PROFILES.values())
    )
    return table
