"""Commands `sweep` and `tune`: choose settings by validation accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import Column, bold, complain, make_table, page_width, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, NoOwnCode, Out, SkipBad, Workers, path_option, with_skip_bad
from protonorm.core.text import visible

if TYPE_CHECKING:
    from rich.table import Table

    from protonorm.search.scores import Score
    from protonorm.search.space import Space
    from protonorm.search.sweeping import Job, Sweep
    from protonorm.search.tuning import Trial


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="METHOD_OR_SETTING",
        help="Methods, and settings with one value or several: lr=0.01,0.03 algorithm.gamma=50,100 seeds=0,1,2; "
        "or a YAML file with lists.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Runs side by side, each in one process; chosen by their number if not given."),
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say how many runs are left, and about how long they take.")]
Best = Annotated[bool, typer.Option("--best", help="Print nothing but the chosen settings, as commands.")]
Figure = Annotated[Path | None, path_option("Folder for the map; <runs>/sweeps/… if not given.")]
MAP = "sweep.png"
Ranges = Annotated[
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


def sweep(
    words: Words,
    out: Out = None,
    jobs: Jobs = None,
    engine: EngineName = None,
    workers: Workers = None,
    figures: Figure = None,
    dry_run: Dry = False,
    best: Best = False,
    skip_bad: SkipBad = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run methods with every combination of settings, and choose the best by validation accuracy."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.engines.choice import check_engine
        from protonorm.report.drawing import refuse_foreign
        from protonorm.runs.layout import runs_root
        from protonorm.search.grid import read_grid
        from protonorm.search.scores import scores_of
        from protonorm.search.sweeping import Sweep, how_many

        check_engine(engine, workers)
        if best and (as_json or dry_run):
            raise ValueError("--best prints commands alone: it is refused beside --json and --dry-run.")
        found = Sweep(read_grid(with_skip_bad(words, skip_bad)), runs_root(out))
        left = found.jobs()
        devices = [one.device for _, _, one in found.grid.runs()]
        count = how_many(len(left), jobs, engine, workers, devices)
        if dry_run:
            plan(found, left, count, engine, workers, as_json=as_json)
            return
        folder = figures or sweep_folder(found)
        refuse_foreign([folder / MAP])
        if not (as_json or best):
            for remark in found.grid.remarks:
                say(visible(remark))
        found.run(left, complain, count=count, engine=engine, workers=workers, no_own_code=no_own_code)
        show(found, scores_of(found), folder, best=best, as_json=as_json)


def show(found: Sweep, scores: Sequence[Score], folder: Path, *, best: bool, as_json: bool) -> None:
    """Print the scores and the chosen settings, and draw the map."""
    from protonorm.errors import Failed
    from protonorm.report.figures import save_figure
    from protonorm.search.grid import commands
    from protonorm.search.scores import sweep_map, winners

    chosen, swept = winners(scores), found.grid.swept
    in_order = sorted(scores, key=lambda score: found.grid.points.index(score.point))
    drawn = save_figure(sweep_map(in_order, swept), folder / MAP) if swept else None
    told = commands([score.point for score in chosen])
    if as_json:
        listed = [plain(score, chosen=score in chosen) for score in scores]
        print_json({"points": listed, "commands": told, "figure": str(drawn) if drawn else None})
    elif best:
        for command in told:
            say(command)
    else:
        say(scores_table(scores, chosen, swept, len(found.grid.seeds)))
        for score in chosen:
            say(visible(winner_line(score)))
        for command in told:
            say(command)
        if drawn:
            say(visible(f"Map: {drawn}"))
    if not chosen:
        raise Failed("No settings can be chosen: none has a finished run for every seed.")


def scores_table(scores: Sequence[Score], chosen: Sequence[Score], swept: Sequence[str], seeds: int) -> Table:
    """Build the table of all points, the best first; chosen points are bold."""
    noted = any(score.note for score in scores)
    columns = [Column("method"), *(Column(name) for name in swept), Column("validation", "right", no_wrap=True)]
    columns += [Column("rounds chosen", "right"), *([Column("not done")] if noted else [])]
    lines = []
    for score in scores:
        values = [_text(score.point.chosen[name]) if name in score.point.chosen else "" for name in swept]
        cells = [score.point.method, *values, str(score.validation or "–"), _rounds(score.rounds)]
        cells += [score.note] if noted else []
        lines.append([bold(one, score in chosen) for one in cells])
    spread = f", mean of {seeds} seeds ± half a 95 % interval (t)" if seeds > 1 else "; one seed: there is no interval"
    caption = (
        f"Validation accuracy in per cent, clients' mean in the round that it chooses{spread}. Bold: chosen for its "
        "method. The best of many is chosen partly by luck, so that its validation accuracy is optimistic."
    )
    return make_table("Settings by validation accuracy", columns, lines, caption)


def winner_line(score: Score) -> str:
    """Describe the settings chosen for a method, and their test accuracy, which was not used to choose."""
    label = ", ".join(f"{name}={_text(value)}" for name, value in score.point.chosen.items()) or "its only settings"
    tested = f"test accuracy there, which had no say: {score.test} %" if score.test else "it was not tested"
    return f"Chosen for {score.point.method}: {label}; {tested}."


def plan(
    found: Sweep, left: Sequence[Job], count: int, engine: str | None, workers: int | None, *, as_json: bool
) -> None:
    """Print how many runs are done and left, and the estimated time."""
    from protonorm.core.text import counted, duration
    from protonorm.engines.choice import cores
    from protonorm.search.scores import estimate

    states = [one.state for one in found.standings().values()]
    processes = count if count > 1 else 1 if engine == "serial" else workers or cores()
    guess = estimate(found, left, count, processes) if left else None
    if as_json:
        seconds = {"seconds": guess.seconds if guess else 0.0, "estimated from": guess.how if guess else ""}
        print_json({"runs": len(states), "left": len(left), "begun": states.count("begun")} | seconds)
        return
    for remark in found.grid.remarks:
        say(visible(remark))
    ended = f", {states.count('diverged')} diverged" if "diverged" in states else ""
    say(
        f"{counted(len(states), 'run')}: {states.count('done')} done{ended}, {len(left)} left, of which "
        f"{states.count('begun')} begun."
    )
    if guess:
        way = f"{count} side by side" if count > 1 else "one after the other"
        say(visible(f"About {duration(guess.seconds)}, {way}; estimated from {guess.how}."))


def sweep_folder(found: Sweep) -> Path:
    """Return the folder of a sweep's map."""
    keys = "\n".join(f"{one.key} {one.rounds}" for _, _, one in found.grid.runs())
    return found.root / "sweeps" / hashlib.sha256(keys.encode()).hexdigest()[:10]


def plain(score: Score, *, chosen: bool) -> dict[str, Any]:
    """Return a point as plain data; test accuracies are given only for chosen settings."""
    point, cell = score.point, score.validation
    return {
        "method": point.method,
        "settings": point.chosen,
        "runs": {str(seed): one.key for seed, one in point.experiments.items()},
        "states": {str(seed): one.state for seed, one in score.standings.items()},
        "validation": {str(seed): value for seed, value in score.values.items()},
        "mean": cell.mean if cell else None,
        "interval": cell.interval if cell else None,
        "rounds": score.rounds,
        "chosen": chosen,
        "test": score.test.mean if chosen and score.test else None,
    }


def _rounds(rounds: Sequence[int]) -> str:
    return " ".join(map(str, rounds)) or "–"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def tune(
    words: Ranges,
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
    """Search for settings by validation accuracy, resuming a started search, and test the best settings at the end."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.analysis.breakdown import plain_run
        from protonorm.analysis.comparison import Unread, rows, whole
        from protonorm.cli.run_tables import comparison_tables
        from protonorm.engines.choice import check_engine
        from protonorm.errors import Failed
        from protonorm.runs.layout import runs_root
        from protonorm.search.space import read_space
        from protonorm.search.tuning import Search, best_trial, import_optuna, used_rounds

        import_optuna()  # fail before anything starts
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
    """Return the command that runs the best settings."""
    from protonorm.search.grid import Point, commands

    used = list(seeds) or [space.seed]
    experiments = {seed: space.experiment(values, seed, tested=True) for seed in used}
    return "\n".join(commands([Point(space.method, dict(values), space.fixed, {}, experiments)]))


def trial_line(one: Trial) -> str:
    """Describe how a trial ended."""
    reached = "diverged" if one.validation is None else f"{100 * one.validation:.2f} %"
    stopped = f", {one.state} after round {one.rounds}" if one.state in ("stopped", "cut") else ""
    return f"trial {one.number}: {_values(one)}: {reached}{stopped}"


def trials_table(trials: Sequence[Trial], best: Trial, rounds: int) -> Table:
    """Build the table of all trials, the best in bold."""
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
