"""The command `tune`: search for settings by validation accuracy, then test the best once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import complain, page_width, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, NoOwnCode, Out, SkipBad, Workers, with_skip_bad
from protonorm.cli.tables import Column, bold, make_table
from protonorm.core.text import visible

if TYPE_CHECKING:
    from rich.table import Table

    from protonorm.search.space import Space
    from protonorm.search.tuning import Trial

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="METHOD_OR_SETTING",
        help="A method, settings, ranges (gamma=10..1000:log, clip=1..5) and choices (optimiser=sgd|adam).",
    ),
]
Trials = Annotated[int, typer.Option(min=1, max=100_000, help="Trials of the search, those done before included.")]
Budget = Annotated[
    int | None, typer.Option(min=1, help="Rounds of all trials together, after which the search ends in any case.")
]
Repeat = Annotated[
    int, typer.Option(min=0, max=1000, help="Fresh seeds with which the best settings are run again and tested.")
]


def tune(
    words: Words,
    trials: Trials = 20,
    budget: Budget = None,
    repeat: Repeat = 3,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Search for settings by validation accuracy; go on with a search that was begun; test the best in the end."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.analysis.comparison import Unread, rows, whole
        from protonorm.analysis.summaries import plain_run
        from protonorm.cli.run_tables import comparison_tables
        from protonorm.cli.running import check_engine
        from protonorm.errors import Failed
        from protonorm.runs.layout import runs_root
        from protonorm.search.journal import import_optuna
        from protonorm.search.space import read_space
        from protonorm.search.tuning import Search, best_trial, used_rounds

        import_optuna()  # refused before anything begins
        check_engine(engine, workers)
        space = read_space(with_skip_bad(words, skip_bad))
        search = Search(space, runs_root(out), engine, workers)
        found = search.run(trials, budget, None if as_json else lambda one: complain(trial_line(one)))
        best = best_trial(found)
        if best is None:
            raise Failed("No trial has come to its end, so that nothing can be chosen; more trials or rounds may help.")
        command = tuned_command(space, best.values, search.fresh_seeds(repeat))
        if not as_json:
            say(trials_table(found, best, used_rounds(found)))
            say(command)
        fresh = {space.method: search.confirm(best.values, repeat, complain)}
        if as_json:
            listed = {"trials": [vars(one) for one in found], "rounds": used_rounds(found), "best": best.values}
            runs = [plain_run(run) for some in whole(fresh).values() for run in some]
            unread = [one.reason for one in fresh[space.method] if isinstance(one, Unread)]
            told = {"command": command, "folder": str(search.folder), "runs": runs, "unread": unread}
            print_json(listed | told)
            return
        if repeat:
            title = "The best settings, with seeds that the search has not seen"
            for table in comparison_tables(title, rows(fresh), page_width()):
                say(table)
        say(visible(f"Search: {search.folder}"))


def tuned_command(space: Space, values: dict[str, Any], seeds: Sequence[int]) -> str:
    """Write the command that runs the best settings."""
    from protonorm.search.commands import commands
    from protonorm.search.grid import Point

    used = list(seeds) or [space.seed]
    experiments = {seed: space.experiment(values, seed, tested=True) for seed in used}
    return "\n".join(commands([Point(space.method, dict(values), space.fixed, {}, experiments)]))


def trial_line(one: Trial) -> str:
    """Say how a trial ended."""
    reached = "diverged" if one.validation is None else f"{100 * one.validation:.2f} %"
    stopped = f", {one.state} after round {one.rounds}" if one.state in ("stopped", "cut") else ""
    return f"trial {one.number}: {_values(one)}: {reached}{stopped}"


def trials_table(trials: Sequence[Trial], best: Trial, rounds: int) -> Table:
    """List all trials, the best in bold type."""
    columns = [Column("trial", "right"), Column("settings"), Column("validation", "right", no_wrap=True)]
    columns += [Column("rounds", "right"), Column("ended", no_wrap=True)]
    lines = [
        [
            bold(text, one is best)
            for text in (
                str(one.number),
                _values(one),
                "–" if one.validation is None else f"{100 * one.validation:.2f}",
                str(one.rounds),
                one.state,
            )
        ]
        for one in trials
    ]
    caption = (
        f"Best validation accuracy of a round in per cent, clients' mean; {rounds} rounds in all. A trial is stopped "
        "when it falls behind the middle one of those that came to their end, and only these can be chosen; one is cut "
        "when --budget is used up, and goes on when there are more rounds. The test "
        "parts were not read. The best of many is chosen partly by luck: what it is worth, fresh seeds tell."
    )
    return make_table("Trials", columns, lines, caption)


def _values(one: Trial) -> str:
    return ", ".join(f"{name}={value}" for name, value in one.values.items())
