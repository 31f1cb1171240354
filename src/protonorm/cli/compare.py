"""The command `compare`: several methods with the same settings, side by side."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import complain, page_width, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, NoOwnCode, Out, Workers, read_path
from protonorm.core.text import visible
from protonorm.errors import Diverged

if TYPE_CHECKING:
    from protonorm.analysis.comparison import Unread
    from protonorm.config.experiment import Experiment
    from protonorm.runs.reader import Run
    from protonorm.trackers.tracker import Tracker

Methods = Annotated[
    list[str],
    typer.Argument(
        metavar="METHOD_OR_SETTING",
        help="Methods, each name, name:field=value,… or file.py:Class; then settings for all; seeds=0,1,2 repeats.",
    ),
]
Figures = Annotated[
    Path | None,
    typer.Option(
        parser=read_path, metavar="PATH", help="Folder for figures and report; <runs>/comparisons/… if not given."
    ),
]
CURVES, MAP, REPORT = "accuracy.png", "partition.png", "report.html"
Csv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]
Solo = Annotated[
    bool,
    typer.Option(
        "--solo",
        help="Run each method also with control=solo, every client federating with itself alone: "
        "the difference is what the exchange brought.",
    ),
]


def compare(
    words: Methods,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = None,
    figures: Figures = None,
    solo: Solo = False,
    as_json: Json = False,
    as_csv: Csv = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run several methods with the same settings and put them side by side, with `local` and `majority`."""
    quiet = as_json or as_csv
    with reporting(quiet=quiet, no_own_code=no_own_code):
        from protonorm.analysis.comparison import Unread, csv_text, rows, whole
        from protonorm.analysis.summaries import headline, plain_run
        from protonorm.cli.run_tables import comparison_tables
        from protonorm.config.methods import experiments_of, tracker_of
        from protonorm.core.registry import find
        from protonorm.engines import ENGINES
        from protonorm.report.page import write_page
        from protonorm.runs.layout import runs_root
        from protonorm.trackers.tracker import choose

        if engine is not None:
            find(ENGINES, engine, "engine")
        tracker, experiments = choose(tracker_of(words)), experiments_of(words)
        if solo:
            experiments = beside_controls(experiments, experiments_of([*words, "control=solo"]))
        folder = figures or comparison_folder(experiments, runs_root(out))
        refuse_to_overwrite(folder)
        found = {
            method: [_run(one, out, engine, workers, tracker, quiet=quiet) for one in some]
            for method, some in experiments.items()
        }
        table, runs = rows(found), whole(found)
        if not runs:
            raise ValueError("No run of this comparison can be read: there is nothing to compare.")
        drawn = draw_comparison(runs, folder)
        page = write_page(runs, folder / REPORT)
        if as_json:
            listed = {method: [plain_run(run) for run in some] for method, some in runs.items()}
            unread = [one.reason for some in found.values() for one in some if isinstance(one, Unread)]
            files = {"figures": list(map(str, drawn)), "report": str(page)}
            print_json({"rows": [row.plain() for row in table], "runs": listed, "unread": unread, **files})
        elif as_csv:
            sys.stdout.write(csv_text(table))
        else:
            for one in comparison_tables(headline(runs), table, page_width()):
                say(one)
            say(visible(f"Figures: {', '.join(map(str, drawn))}"))
            say(visible(f"Report: {page}"))


def beside_controls(
    experiments: Mapping[str, list[Experiment]], controls: Mapping[str, list[Experiment]]
) -> dict[str, list[Experiment]]:
    """Put each method's solo control after it; Local needs none, as nothing is exchanged in it."""
    from protonorm.algorithms.local import Local  # needs torch

    if any(one.control == "solo" for some in experiments.values() for one in some):
        raise ValueError("control=solo is refused with --solo, which runs each method both with and without it.")
    found = {}
    for method, some in experiments.items():
        found[method] = some
        if not isinstance(some[0].algorithm, Local):
            found[f"{method} (solo)"] = controls[method]
    return found


def comparison_folder(experiments: Mapping[str, Sequence[Experiment]], root: Path) -> Path:
    """Say where the figures and the report of a comparison go."""
    keys = "\n".join(one.key for some in experiments.values() for one in some)
    return root / "comparisons" / hashlib.sha256(keys.encode()).hexdigest()[:10]


def refuse_to_overwrite(folder: Path) -> None:
    """Refuse, before anything is run, a folder in which something is that we would replace and that is not ours."""
    from protonorm.report import drawing  # slow to import
    from protonorm.report.page import write

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; figures and report need one.")
    drawing.refuse_foreign([folder / CURVES, folder / MAP])
    write.refuse_to_overwrite(folder / REPORT)


def draw_comparison(runs: Mapping[str, Sequence[Run]], folder: Path) -> list[Path]:
    """Write the figures of a comparison: accuracy over rounds, and who holds what."""
    from protonorm.report.figures import accuracy_curves, heat_map, save_figure  # slow to import

    first = next(iter(runs.values()))[0]
    return [save_figure(accuracy_curves(runs), folder / CURVES), save_figure(heat_map(first), folder / MAP)]


def _run(
    experiment: Experiment,
    out: Path | None,
    engine: str | None,
    workers: int | None,
    tracker: Tracker | None,
    *,
    quiet: bool,
) -> Run | Unread:
    """Run one experiment and show its rounds; in a table, a run that diverged or that is damaged has a row too."""
    from protonorm.analysis.comparison import Unread
    from protonorm.analysis.reading import UNREADABLE, read_whole, unread_reason
    from protonorm.cli.progress import RoundDisplay
    from protonorm.runs.layout import INFO, runs_root
    from protonorm.session.running import run

    folder, headline = runs_root(out) / experiment.key, experiment.algorithm.headline
    begun = os.path.lexists(folder / INFO)  # then its settings were good enough before, and only its files can be bad
    with RoundDisplay(experiment.key, experiment.rounds, headline, quiet=quiet) as display:
        try:
            run(experiment, out=out, engine=engine, workers=workers, watch=display, tracker=tracker)
        except Diverged as error:
            complain(str(error))
        except ValueError as error:
            if not begun:
                raise
            complain(str(error))
            return Unread(headline, str(error))
        except OSError:
            if not begun or _is_readable(folder):  # then it is the disk or another process, not the record
                raise
    try:
        return read_whole(folder, experiment.rounds)
    except UNREADABLE as error:
        complain(unread_reason(error, folder))
        return Unread(headline, unread_reason(error, folder))


def _is_readable(folder: Path) -> bool:
    from protonorm.analysis.reading import UNREADABLE, read_whole

    try:
        read_whole(folder)
    except UNREADABLE:
        return False
    return True
