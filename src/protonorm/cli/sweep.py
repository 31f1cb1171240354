"""The command `sweep`: a grid of settings, run and chosen from by validation accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import complain, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, NoOwnCode, Out, SkipBad, Workers, read_path, with_skip_bad
from protonorm.cli.tables import Column, bold, make_table
from protonorm.core.text import visible

if TYPE_CHECKING:
    from rich.table import Table

    from protonorm.search.choice import Score
    from protonorm.search.side_by_side import Job
    from protonorm.search.sweeping import Sweep

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
Figure = Annotated[
    Path | None,
    typer.Option(parser=read_path, metavar="PATH", help="Folder for the map; <runs>/sweeps/… if not given."),
]
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
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run methods with every combination of settings, and choose the best by validation accuracy."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.cli.running import check_engine
        from protonorm.report.drawing import refuse_foreign
        from protonorm.runs.layout import runs_root
        from protonorm.search.choice import scores_of
        from protonorm.search.grid import read_grid
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
    """Show what was reached and what is chosen, and draw the map."""
    from protonorm.errors import Failed
    from protonorm.report.figures import save_figure
    from protonorm.search.choice import winners
    from protonorm.search.commands import commands
    from protonorm.search.heat import sweep_map

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
    """List all points, the best first; those that are chosen are bold."""
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
    """Say what is chosen for a method, and its test accuracy, which has decided nothing."""
    label = ", ".join(f"{name}={_text(value)}" for name, value in score.point.chosen.items()) or "its only settings"
    tested = f"test accuracy there, which had no say: {score.test} %" if score.test else "it was not tested"
    return f"Chosen for {score.point.method}: {label}; {tested}."


def plan(
    found: Sweep, left: Sequence[Job], count: int, engine: str | None, workers: int | None, *, as_json: bool
) -> None:
    """Say how many runs are done and left, and about how long it takes."""
    from protonorm.engines.processes.engine import cores
    from protonorm.report.page.text import counted, duration
    from protonorm.search.estimate import estimate

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
    """Say where the map of a sweep goes."""
    keys = "\n".join(f"{one.key} {one.rounds}" for _, _, one in found.grid.runs())
    return found.root / "sweeps" / hashlib.sha256(keys.encode()).hexdigest()[:10]


def plain(score: Score, *, chosen: bool) -> dict[str, Any]:
    """Give a point as plain data; test accuracies are those of chosen settings alone."""
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
