"""The command `compare`: several methods with the same settings, side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import page_width, print_json, reporting, say
from protonorm.cli.options import EngineName, Json, NoOwnCode, Out, SkipBad, Workers, read_path, with_skip_bad
from protonorm.core.text import visible
from protonorm.errors import Failed

if TYPE_CHECKING:
    from protonorm.runs.run import Run

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
STDOUT = Path("-")
Csv = Annotated[bool, typer.Option("--csv", help="Print a line for each method, rule and seed, as CSV.")]
Latex = Annotated[
    Path | None,
    typer.Option(parser=read_path, metavar="FILE", help="Write the table for a paper; - prints it and nothing else."),
]
Markdown = Annotated[
    Path | None,
    typer.Option(parser=read_path, metavar="FILE", help="Write the table in Markdown; - prints it and nothing else."),
]
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
    skip_bad: SkipBad = False,
    as_json: Json = False,
    as_csv: Csv = False,
    latex: Latex = None,
    markdown: Markdown = None,
    no_own_code: NoOwnCode = False,
) -> None:
    """Run several methods with the same settings and put them side by side, with `local` and `majority`."""
    printed = [as_json, as_csv, latex == STDOUT, markdown == STDOUT]
    quiet = any(printed)
    with reporting(quiet=quiet, no_own_code=no_own_code):
        from protonorm.analysis.comparison import Unread, rows, whole
        from protonorm.analysis.seeds import csv_text
        from protonorm.analysis.summaries import headline, plain_run
        from protonorm.cli.run_tables import comparison_tables
        from protonorm.cli.running import check_engine, run_for_table
        from protonorm.cli.table_files import refuse_files, table_text, write_tables
        from protonorm.config.methods import beside_controls, experiments_of, tracker_of
        from protonorm.report.page import write_page
        from protonorm.runs.layout import runs_root
        from protonorm.session.comparison import comparison_key
        from protonorm.trackers.tracker import choose

        if sum(printed) > 1:
            raise ValueError("One of --json, --csv, --latex - and --markdown - can be printed, not several.")
        files = {ending: path for ending, path in ((".tex", latex), (".md", markdown)) if path and path != STDOUT}
        refuse_files(files)
        check_engine(engine, workers)
        words = with_skip_bad(words, skip_bad)
        tracker, experiments = choose(tracker_of(words)), experiments_of(words)
        if solo:
            experiments = beside_controls(experiments, experiments_of([*words, "control=solo"]))
        folder = figures or runs_root(out) / "comparisons" / comparison_key(experiments)
        refuse_to_overwrite(folder)
        found = {
            method: [run_for_table(one, out, engine, workers, tracker, quiet=quiet) for one in some]
            for method, some in experiments.items()
        }
        table, runs = rows(found), whole(found)
        if not runs:
            raise ValueError("No run of this comparison can be read: there is nothing to compare.")
        drawn = draw_comparison(runs, folder)
        page = write_page(runs, folder / REPORT)
        title = headline(runs)
        written = write_tables(files, title, table)
        if as_json:
            listed = {method: [plain_run(run) for run in some] for method, some in runs.items()}
            unread = [one.reason for some in found.values() for one in some if isinstance(one, Unread)]
            places = {"figures": list(map(str, drawn)), "report": str(page), "tables": list(map(str, written))}
            print_json({"rows": [row.plain() for row in table], "runs": listed, "unread": unread, **places})
        elif as_csv:
            sys.stdout.write(csv_text(found))
        elif quiet:
            sys.stdout.write(table_text(".tex" if latex == STDOUT else ".md", title, table))
        else:
            for one in comparison_tables(title, table, page_width()):
                say(one)
            say(visible(f"Figures: {', '.join(map(str, drawn))}"))
            say(visible(f"Report: {page}"))
            for path in written:
                say(visible(f"Table: {path}"))
        if not any(run.finished for some in runs.values() for run in some):
            raise Failed("No run of this comparison came to its end.")


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
