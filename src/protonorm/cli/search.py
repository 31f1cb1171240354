"""Commands `sweep` and `tune`: choose settings by validation accuracy."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import Column, bold, complain, make_table, page_width, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, NoOwnCode, Out, Quiet, SkipBad, Workers, path_option, with_skip_bad
from protonorm.core.text import visible

if TYPE_CHECKING:
    from rich.table import Table

    from protonorm.search.scores import Score
    from protonorm.search.sweeping import Job, Sweep
    from protonorm.search.tuning import Trial


WORDS = "Methods, and settings with one value or several: lr=0.01,0.03 seeds=0,1,2; or a YAML file with lists."
Words = Annotated[list[str], typer.Argument(metavar="METHOD_OR_SETTING", help=WORDS)]
Jobs = Annotated[int | None, typer.Option(min=1, max=4096, help="Runs side by side; by their number if not given.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say how many runs are left, and about how long they take.")]
Best = Annotated[bool, typer.Option("--best", help="Print nothing but the chosen settings, as commands.")]
Figure = Annotated[Path | None, path_option("Folder for the map; <runs>/sweeps/… if not given.")]
RANGES = "A method, settings, ranges (gamma=10..1000:log, clip=1..5) and choices (optimiser=sgd|adam)."
Ranges = Annotated[list[str], typer.Argument(metavar="METHOD_OR_SETTING", help=RANGES)]
Trials = Annotated[int, typer.Option(min=1, max=100_000, help="Trials of the search, those done before included.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Rounds of all trials together, after which the search ends.")]
Repeat = Annotated[int, typer.Option(min=0, max=1000, help="Fresh seeds to run and test the best settings with.")]
MAP = "sweep.png"


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
    quiet: Quiet = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run methods with every combination of settings, and choose the best by validation accuracy."""
    with reporting(quiet=as_json or quiet, no_own_code=no_own_code):
        from protonorm.engines.choice import check_engine
        from protonorm.report.drawing import refuse_foreign
        from protonorm.runs.layout import runs_root
        from protonorm.search.grid import read_grid
        from protonorm.search.scores import scores_of
        from protonorm.search.sweeping import Sweep, how_many

        check_engine(engine, workers)
        if best and (as_json or dry_run):
            raise ValueError("--best must be given without --json and --dry-run, as it prints commands alone.")
        task = Sweep(read_grid(with_skip_bad(words, skip_bad)), runs_root(out))
        jobs_left = task.jobs()
        devices = [experiment.device for _, _, experiment in task.grid.runs()]
        count = how_many(len(jobs_left), jobs, engine, workers, devices)
        if dry_run:
            plan(task, jobs_left, count, engine, workers, as_json=as_json)
            return
        keys = "\n".join(f"{experiment.key} {experiment.rounds}" for _, _, experiment in task.grid.runs())
        folder = figures or task.root / "sweeps" / hashlib.sha256(keys.encode()).hexdigest()[:10]
        refuse_foreign([folder / MAP])
        if not (as_json or best or quiet):
            for remark in task.grid.remarks:
                say(visible(remark))
        task.run(jobs_left, complain, count=count, engine=engine, workers=workers, no_own_code=no_own_code)
        show(task, scores_of(task), folder, best=best, as_json=as_json, quiet=quiet)


def show(
    task: "Sweep", scores: "Sequence[Score]", folder: Path, *, best: bool, as_json: bool, quiet: bool = False
) -> None:
    """Print the scores and the chosen settings, and draw the map."""
    from protonorm.errors import Failed
    from protonorm.report.drawing import write_figure
    from protonorm.search.grid import commands
    from protonorm.search.scores import sweep_map, winners

    chosen, swept = winners(scores), task.grid.swept
    in_order = sorted(scores, key=lambda score: task.grid.points.index(score.point))
    drawn = write_figure(sweep_map(in_order, swept), folder / MAP) if swept else None
    lines = commands([score.point for score in chosen])
    if as_json:
        listed = [plain(score, chosen=score in chosen) for score in scores]
        print_json({"points": listed, "commands": lines, "figure": str(drawn) if drawn else None})
    else:
        if not best:
            say(scores_table(scores, chosen, swept, task.grid.seeds), captions=not quiet)
            for position, score in enumerate(chosen):
                own = ", ".join(f"{name}={_text(value)}" for name, value in score.point.chosen.items())
                tested = f"test accuracy there, which had no say: {score.test} %" if score.test else "it was not tested"
                line = f"Chosen for {score.point.method}: {own or 'its only settings'}; {tested}."
                lines.insert(position, visible(line))
            lines += [visible(f"Map: {drawn}")] if drawn and not quiet else []
        for line in lines:
            say(line)
    if not chosen:
        raise Failed("No settings can be chosen: none has a finished run for every seed.")


def scores_table(
    scores: "Sequence[Score]", chosen: "Sequence[Score]", swept: Sequence[str], seeds: Sequence[int]
) -> "Table":
    """Build the table of all points, the best first; chosen points are bold."""
    from protonorm.cli.run_tables import seeds_text

    noted = any(score.note for score in scores)
    columns = [Column("method"), *(Column(name) for name in swept), Column("validation", "right", no_wrap=True)]
    columns += [Column("rounds chosen", "right"), *([Column("not done")] if noted else [])]
    lines = []
    for score in scores:
        values = [_text(score.point.chosen[name]) if name in score.point.chosen else "" for name in swept]
        cells = [score.point.method, *values, str(score.validation or "–"), " ".join(map(str, score.rounds)) or "–"]
        lines.append([bold(cell, score in chosen) for cell in [*cells, *([score.note] if noted else [])]])
    explanation = f", mean of {len(seeds)} seeds ± half a 95 % interval (t)"
    spread = explanation if len(seeds) > 1 else "; one seed: there is no interval"
    caption = (
        f"Validation accuracy in per cent, clients' mean in the round that it chooses{spread}. Bold: chosen for its "
        "method. The best of many is chosen partly by luck, so that its validation accuracy is optimistic."
    )
    return make_table(f"Settings by validation accuracy, {seeds_text(seeds)}", columns, lines, caption)


def plan(
    task: "Sweep", left: "Sequence[Job]", count: int, engine: str | None, workers: int | None, *, as_json: bool
) -> None:
    """Print how many runs are done and left, and the estimated time."""
    from protonorm.core.randomness import cores
    from protonorm.core.text import counted, duration
    from protonorm.search.scores import estimate

    states = [standing.state for standing in task.standings().values()]
    done, started, diverged = (states.count(state) for state in ("done", "begun", "diverged"))
    processes = count if count > 1 else 1 if engine == "serial" else workers or cores()
    guess = estimate(task, left, count, processes) if left else None
    if as_json:
        seconds = {"seconds": guess.seconds if guess else 0.0, "estimated from": guess.how if guess else ""}
        print_json({"runs": len(states), "left": len(left), "begun": started} | seconds)
        return
    for remark in task.grid.remarks:
        say(visible(remark))
    ended = f", {diverged} diverged" if diverged else ""
    say(f"{counted(len(states), 'run')}: {done} done{ended}, {len(left)} left, of which {started} begun.")
    if guess:
        arrangement = f"{count} side by side" if count > 1 else "one after the other"
        say(visible(f"About {duration(guess.seconds)}, {arrangement}; estimated from {guess.how}."))


def plain(score: "Score", *, chosen: bool) -> dict[str, Any]:
    """Return a point as plain data; test accuracies are given only for chosen settings."""
    point, cell = score.point, score.validation
    return {
        "method": point.method,
        "settings": point.chosen,
        "runs": {str(seed): experiment.key for seed, experiment in point.experiments.items()},
        "states": {str(seed): standing.state for seed, standing in score.standings.items()},
        "validation": {str(seed): value for seed, value in score.values.items()},
        "mean": cell.mean if cell else None,
        "interval": cell.interval if cell else None,
        "rounds": score.rounds,
        "chosen": chosen,
        "test": score.test.mean if chosen and score.test else None,
    }


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
    quiet: Quiet = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Search for settings by validation accuracy, resuming a started search, and test the best settings at the end."""
    with reporting(quiet=as_json or quiet, no_own_code=no_own_code):
        from protonorm.analysis.breakdown import plain_run
        from protonorm.analysis.comparison import Unread, rows, whole
        from protonorm.cli.run_tables import comparison_tables, seeds_text
        from protonorm.engines.choice import check_engine
        from protonorm.errors import Failed
        from protonorm.runs.layout import runs_root
        from protonorm.search.grid import Point, commands
        from protonorm.search.space import read_space
        from protonorm.search.tuning import Search, best_trial, import_optuna, used_rounds

        import_optuna()  # fail before anything starts
        check_engine(engine, workers)
        space = read_space(with_skip_bad(words, skip_bad))
        search = Search(space, runs_root(out), engine, workers)
        done = search.run(trials, budget, None if as_json or quiet else lambda trial: complain(trial_line(trial)))
        best, rounds = best_trial(done), used_rounds(done)
        if best is None:
            raise Failed("No trial has come to its end, so that nothing can be chosen; more trials or rounds may help.")
        seeds = search.fresh_seeds(repeat) or [space.seed]
        experiments = {seed: space.experiment(best.values, seed, tested=True) for seed in seeds}
        command = "\n".join(commands([Point(space.method, dict(best.values), space.fixed, {}, experiments)]))
        if not as_json:
            say(trials_table(done, best, rounds), captions=not quiet)
            say(command)
        fresh = {space.method: search.confirm(best.values, repeat, complain)}
        if as_json:
            runs = [plain_run(run) for group in whole(fresh).values() for run in group]
            unread = [item.reason for item in fresh[space.method] if isinstance(item, Unread)]
            listed = {"trials": [vars(trial) for trial in done], "rounds": rounds, "best": best.values}
            print_json(listed | {"command": command, "folder": str(search.folder), "runs": runs, "unread": unread})
            return
        if repeat:
            title = f"The best settings, with {seeds_text(search.fresh_seeds(repeat))}, which the search has not seen"
            for table in comparison_tables(title, rows(fresh), page_width()):
                say(table, captions=not quiet)
        if not quiet:
            say(visible(f"Search: {search.folder}"))


def trial_line(trial: "Trial") -> str:
    """Describe how a trial ended."""
    reached = "diverged" if trial.validation is None else f"{100 * trial.validation:.2f} %"
    stopped = f", {trial.state} after round {trial.rounds}" if trial.state in ("stopped", "cut") else ""
    return f"trial {trial.number}: {_values(trial)}: {reached}{stopped}"


def trials_table(trials: "Sequence[Trial]", best: "Trial", rounds: int) -> "Table":
    """Build the table of all trials, the best in bold."""
    columns = [Column("trial", "right"), Column("settings"), Column("validation", "right", no_wrap=True)]
    columns += [Column("rounds", "right"), Column("ended", no_wrap=True)]
    lines = []
    for trial in trials:
        reached = "–" if trial.validation is None else f"{100 * trial.validation:.2f}"
        cells = [str(trial.number), _values(trial), reached, str(trial.rounds), trial.state]
        lines.append([bold(cell, trial is best) for cell in cells])
    caption = (
        f"Best validation accuracy of a round in per cent, clients' mean; {rounds} rounds in all. A trial is stopped "
        "when it falls behind the middle one of those that came to their end, and only these can be chosen; one is cut "
        "when --budget is used up, and goes on when there are more rounds. The test "
        "parts were not read. The best of many is chosen partly by luck: what it is worth, fresh seeds tell."
    )
    return make_table("Trials", columns, lines, caption)


def _values(trial: "Trial") -> str:
    return ", ".join(f"{name}={value}" for name, value in trial.values.items())
