"""Outputs of a table or figure: Markdown, LaTeX, CSV, PNG and PDF, each with its provenance."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from protonorm import __version__
from protonorm.analysis.comparison import COLUMNS, OPTIONAL, Reported
from protonorm.analysis.settings import grouped
from protonorm.analysis.tables import NEEDS
from protonorm.core.text import (
    csv_lines,
    first_words,
    latex_float,
    latex_text,
    markdown_lines,
    markdown_text,
    visible,
)
from protonorm.core.types import shown
from protonorm.files import make_folder, replace
from protonorm.runs.run import UNREADABLE

from .accuracy import accuracy_tables
from .cells import Study, Table, TableEntry, few
from .findings import Findings, Outcome, finished_runs, share_of_seeds
from .profiles import cut_in_short, cuts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = {  # parts of the provenance that identify files written by this module
    ".md": (b"`, profile `", b"`, protonorm "),
    ".tex": (b", profile ", b", protonorm "),
    ".csv": (b",profile,version,command\n",),
}
HEAD = 2**16  # bytes that are searched for them
MOST = 6  # maximum cells named for one reason
CSV_COLUMNS = (
    "row", "column", "seed", "seeds", "state", "rule", "headline", "accuracy", "round", "chosen_by", "clients", "worst",
    *OPTIONAL, "best", "best_round", "last", "own_best", "paper", "paper_std", "key", "note",
)  # fmt: skip
ORIGIN = ("cut", "protocol", "profile", "version", "command")  # last columns of every line
CAPTION = 40  # maximum words of a caption in LaTeX
ROWS = 10  # maximum rows of a table in LaTeX
SHORT = 16  # characters of a name that fit in a narrow column

Made = TypeVar("Made")


class Written(NamedTuple):
    """Outputs of a study."""

    findings: Findings
    tables: Sequence[Table]
    remarks: list[str]  # notes on what is missing
    paths: list[Path]


def write(findings: Findings, folder: Path) -> Written:
    """Write all outputs of a study; outputs that are missing or fail are noted in them."""
    make_folder(folder)
    failures: list[str] = []

    def attempt(make: Callable[[], Made], otherwise: str) -> Made | None:
        """Call `make`; a damaged record or an error in the study's own function is noted, and the rest continues."""
        try:
            return make()
        except UNREADABLE as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        failures.append(f"{otherwise}: {visible(' '.join(reason.split())).rstrip('.')}.")
        return None

    study = findings.study
    tables = attempt(lambda: make_tables(findings), "The table was not made") or ()
    pictures = attempt(lambda: _save(findings, draw_curves(findings), folder), "The curves were not drawn") or []
    if draw := study.draw:
        pictures += attempt(lambda: _save(findings, draw(findings), folder), "Nothing was drawn") or []
    notes = [*remarks(findings), *failures]
    pages = {"md": page(findings, tables, [path for path in pictures if path.suffix == ".png"], notes)}
    if tables:
        pages["tex"] = latex_page(findings, tables, notes)
    if study.columns or tables:
        pages["csv"] = accuracy_csv(findings) if study.columns else table_csv(findings, tables)
    texts = {folder / f"{study.name}.{ending}": text for ending, text in pages.items()}
    for path, text in texts.items():
        replace(path, text.encode(errors="backslashreplace"))
    return Written(findings, tables, notes, [*pictures, *texts])


def refuse_foreign_files(study: Study, folder: Path) -> None:
    """Raise a ValueError if a study's outputs would overwrite files that protonorm did not write."""
    from protonorm.report.drawing import refuse_foreign  # slow to import

    for ending, marks in MARKS.items():
        path = folder / f"{study.name}{ending}"
        head = path.read_bytes()[:HEAD] if path.is_file() else b""
        if os.path.lexists(path) and not all(mark in head for mark in marks):
            raise ValueError(f"{path} was not written by protonorm; it is left as it is. Give another folder.")
    figures = [study.name] if study.draw else []
    figures += [f"{_curves_name(study)}{study.ending}"] if study.columns else []
    refuse_foreign(folder / f"{name}{ending}" for name in figures for ending in (".png", ".pdf"))


def make_tables(findings: Findings) -> Sequence[Table]:
    """Build a study's tables; the explanation of each lists the reductions."""
    make = findings.study.tables or (accuracy_tables if findings.study.columns else None)
    tables = make(findings) if make else ()
    cut = cut_in_short(findings)
    return (
        [table._replace(explanation=f"{table.explanation} Cut: {cut}.".strip()) for table in tables] if cut else tables
    )


def draw_curves(findings: Findings) -> Mapping[str, Figure]:
    """Draw accuracy over rounds: a panel for each column with a started run, and the first such seed of each row.

    Unfinished runs are marked. Printed numbers are shown if the profile gives results.
    """
    study, rows = findings.study, (*findings.rows, *findings.study.beside)
    places = [column.place for column in findings.columns]
    runs = {place: {row: run for row in rows if (run := findings.run(row, place)) and run.rounds} for place in places}
    panels = {place: drawn for place, drawn in runs.items() if drawn}
    if not panels:
        return {}
    from ..figures import accuracy_panels  # slow to import

    paper = study.paper if findings.profile.is_result else {}
    numbers = ((place, (row, one.mean)) for (row, place), one in paper.items() if row in panels.get(place, {}))
    printed = {
        place: {row: mean for row, mean in pairs if mean is not None} for place, pairs in grouped(numbers).items()
    }
    return {_curves_name(study): accuracy_panels(panels, printed)}


def _curves_name(study: Study) -> str:
    """Return the name of the figure of a table's curves, without the suffix of a part."""
    return f"{study.name.removesuffix(study.ending)}-curves"


def _save(findings: Findings, figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as PNG and PDF with their provenance; equal figures give equal files."""
    for name in figures:
        if not name or name != Path(name).name:
            raise ValueError(f"The name of a figure must be a text without slashes, got {shown(name)}.")
    if not figures:
        return []
    from ..figures import save  # slow to import

    study, keys = findings.study, ", ".join(outcome.key for outcome in findings.outcomes if outcome.key and outcome.run)
    cut = f" Cut: {short}." if (short := cut_in_short(findings)) else ""
    metadata, stamp = f"{origin(findings).replace('`', '')}{cut} Runs: {keys}", findings.profile.stamp
    return [
        path
        for name, figure in figures.items()
        for path in save(figure, folder / f"{name}{study.ending}", study.title, metadata, stamp=stamp)
    ]


def page(findings: Findings, tables: Sequence[Table], pictures: Sequence[Path], notes: Sequence[str]) -> str:
    """Render a study as one page of Markdown."""
    parts = [f"## {_stamp(findings)}{markdown_text(findings.study.title)}", "", origin(findings), ""]
    parts += [f"- {sentence}" for sentence in _circumstances(findings)] + [""]
    parts += [markdown(table) for table in tables]
    parts += [f"![{markdown_text(path.stem)}]({quote(os.fsencode(path.name))})\n" for path in pictures]
    if notes:
        parts += ["**What is missing:**", "", *(f"- {markdown_text(note)}" for note in notes), ""]
    if findings.outcomes:
        runs = [
            [markdown_text(outcome.where), str(outcome.seed), outcome.state, f"`{outcome.key or '-'}`"]
            for outcome in findings.outcomes
        ]
        parts += ["**Runs:**", "", *markdown_lines("llll", ["cell", "seed", "state", "key"], runs), ""]
    return "\n".join(parts)


def markdown(table: Table) -> str:
    """Render a table as Markdown; further lines of an entry are below its number."""

    def entry(value: TableEntry) -> str:
        text = f"**{markdown_text(value.text)}**" if value.bold else markdown_text(value.text)
        return "<br>".join([text, *map(markdown_text, value.lines)])

    headings = [f"{group}: {name}" if group else name for group, name in table.titled_columns]
    rows = [[markdown_text(row), *map(entry, entries)] for row, entries in table.rows]
    body = markdown_lines("l" + "r" * len(headings), list(map(markdown_text, [table.corner, *headings])), rows)
    return "\n".join([f"### {markdown_text(table.title)}", "", *body, "", markdown_text(table.explanation), ""])


def latex_page(findings: Findings, tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Render tables in LaTeX; those with many rows are divided, because a float must fit on a page."""
    runs = dict.fromkeys(f"run {outcome.key}" for outcome in findings.outcomes if outcome.run)
    comments = [origin(findings).replace("`", ""), *_circumstances(findings), *notes, *runs]
    texts: list[str] = []
    for table in tables:
        for start in range(0, len(table.rows), ROWS):
            continued = " (continued)" if start else ""
            part = table._replace(
                title=f"{_stamp(findings)}{table.title}{continued}", rows=table.rows[start : start + ROWS]
            )
            label = findings.study.name + (f"_{len(texts)}" if texts else "")
            texts.append(latex(part, label, () if texts else comments))
    return "\n".join(texts)


def latex(table: Table, label: str, comments: Sequence[str]) -> str:
    """Render a table in LaTeX: up to two columns of numbers in a column of the page, more over both columns.

    Columns share the width of the page, and longer texts are wrapped.
    """
    names = 0.16 if max((len(row) for row, _ in table.rows), default=0) <= SHORT else 0.26
    width = r"\dimexpr %.4f\linewidth-2\tabcolsep"
    share, above, rules, first = (1 - names) / max(len(table.columns), 1), [""], [], 2
    for name, same in groupby(table.groups):
        count = len(list(same))
        box = rf"\parbox{{{width % (count * share)}}}{{\centering {latex_text(name)}}}"
        rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
        edge = "@{}" if first > len(table.columns) + 1 else ""  # no space beyond the last column
        above.append(rf"\multicolumn{{{count}}}{{c{edge}}}{{{box}}}")
    head = [" & ".join(above) + r" \tabularnewline", " ".join(rules)] if table.groups else []
    return latex_float(
        [*comments, NEEDS],
        rf"p{{{names}\linewidth}}" + f"p{{{width % share}}}" * len(table.columns),
        [*head, _latex_line(map(latex_text, [table.corner, *table.columns]))],
        [line for row, entries in table.rows for line in _latex_lines(row, entries)],
        first_words(f"{table.title.rstrip('.')}.", CAPTION),
        label,
        [table.explanation],
        wide=len(table.columns) > 2,
        size="scriptsize" if len(table.columns) > 2 else "footnotesize",
    )


def _latex_lines(row: str, entries: Sequence[TableEntry]) -> list[str]:
    """Render a row: our numbers, and below them the best test rounds, the printed numbers and the differences."""
    values = [f"\\textbf{{{latex_text(entry.text)}}}" if entry.bold else latex_text(entry.text) for entry in entries]
    below = [entry.below.partition(" (") for entry in entries]
    further = {
        **{name: [entry.tests.get(name, "") for entry in entries] for name in OPTIONAL},
        "best*": [entry.best for entry in entries],
        "printed": [printed for printed, _, _ in below],
        "difference": [difference.rstrip(")") for _, _, difference in below],
    }
    small = [[rf"\quad {latex_text(name)}", *map(latex_text, line)] for name, line in further.items() if any(line)]
    styled = ([f"{{\\scriptsize {text}}}" if text else "" for text in line] for line in small)
    return [_latex_line([latex_text(row), *values]), *map(_latex_line, styled)]


def _latex_line(cells: Iterable[str]) -> str:
    """Render a line of cells that wrap, but not between ± and its number."""
    first, *numbers = (cell.replace(r"$\pm$ ", r"$\pm$~") for cell in cells)
    return " & ".join([rf"\raggedright {first}", *(rf"\raggedleft {cell}" for cell in numbers)]) + r" \tabularnewline"


def accuracy_csv(findings: Findings) -> str:
    """Render every cell as CSV, also cells without a number: accuracies in per cent, a line for each seed and rule.

    `accuracy`, `clients` and `worst` are those of the reported `round`; `best` and `own_best` are optimistic; `seeds`
    counts the finished seeds of the cell. An unfinished run has a line without numbers.
    """
    lines = [line for outcome in findings.outcomes for line in _csv_lines(findings, outcome)]
    columns = [name for name in CSV_COLUMNS if name not in OPTIONAL or any(name in line for line in lines)]
    return _csv(findings, columns, [[line.get(name, "") for name in columns] for line in lines])


def table_csv(findings: Findings, tables: Sequence[Table]) -> str:
    """Render the entries of other tables as CSV, as they are shown."""
    titles = (tables[0].corner, *tables[0].columns)
    return _csv(
        findings, titles, [[row, *(entry.text for entry in line)] for table in tables for row, line in table.rows]
    )


def _csv(findings: Findings, titles: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    profile = findings.profile.stamp or findings.profile.name
    origin = [cut_in_short(findings), findings.protocol.name, profile, __version__, findings.command]
    return csv_lines([[*titles, *ORIGIN], *([*line, *origin] for line in lines)])


def _csv_lines(findings: Findings, outcome: Outcome) -> list[dict[str, Any]]:
    seeds, run = findings.at(*outcome.cell.place), outcome.run
    finished = len(finished_runs(seeds))
    note = outcome.progress if outcome.state == "begun" else outcome.reason
    if outcome.state == "diverged" and run and run.failure:
        note = f"round {run.failure.round}"
    elif outcome.state == "finished":
        note = share_of_seeds(finished, len(seeds))
    common = {"row": outcome.cell.row, "column": outcome.cell.column, "seed": outcome.seed, "seeds": finished}
    common |= {"state": outcome.state, "key": outcome.key or "", "note": note}
    if findings.profile.is_result and (printed := findings.study.paper.get(outcome.cell.place)):
        common |= {"paper": "-" if printed.mean is None else printed.mean, "paper_std": printed.std or ""}
    if run is None or outcome.state != "finished":
        return [common]
    return [
        common | _csv_numbers(numbers) | {"rule": rule, "headline": rule == run.info.headline}
        for rule, numbers in outcome.reported.items()
    ]


def _csv_numbers(numbers: Reported | None) -> dict[str, Any]:
    if numbers is None:
        return {}
    shares = {title.removesuffix(" 10 %"): value(numbers) for title, value in COLUMNS.values()}
    names = {
        name.rstrip("*").replace(" ", "_"): f"{100 * share:.4f}" for name, share in shares.items() if share is not None
    }
    rounds = {"round": numbers.choice.record.round, "chosen_by": numbers.choice.by} if numbers.choice else {}
    return names | rounds | {"best_round": numbers.beside.best.round}


def _stamp(findings: Findings) -> str:
    return f"{findings.profile.stamp}: " if findings.profile.stamp else ""


def _circumstances(findings: Findings) -> list[str]:
    """Describe the protocol, if the study has cells, and the reductions."""
    return [*([findings.protocol.sentence] if findings.study.cells else []), *cuts(findings)]


def origin(findings: Findings) -> str:
    """Return the provenance: command, profile, protocol and version, and the versions of the runs."""
    by_version = {
        " ".join(f"{name} {versions[name]}" for name in ("protonorm", "torch") if name in versions)
        for outcome in findings.outcomes
        if outcome.run and (versions := outcome.run.info.versions)
    }
    runs = f" Runs made with {'; '.join(sorted(by_version))}." if by_version else ""
    command = markdown_code(" ".join(findings.command.split()))
    part = f" {visible(findings.study.part)}" if findings.study.part else ""
    names = f"profile `{findings.profile.name}`, protocol `{findings.protocol.name}`"
    return f"{command}, {names}, protonorm {__version__}.{runs}{part}"


def remarks(findings: Findings) -> list[str]:
    """List what is missing, each reason once with its cells."""

    def standing(outcome: Outcome) -> tuple[str, str]:
        if outcome.state in ("missing", "refused", "damaged"):
            return " ".join(outcome.reason.split()), outcome.where
        where = f"{outcome.where} (seed {outcome.seed})"
        if outcome.state == "diverged" and outcome.run and outcome.run.failure:
            return f"Diverged in round {outcome.run.failure.round}", where
        return f"Begun: {outcome.progress}" if outcome.state == "begun" else "Not run yet", where

    cells = grouped(standing(outcome) for outcome in findings.outcomes if outcome.state != "finished")
    return [f"{reason.rstrip('.')}: {few(places, MOST, 'others')}." for reason, places in cells.items()]


def markdown_code(text: str) -> str:
    """Format text as inline code in Markdown."""
    line = visible(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"
