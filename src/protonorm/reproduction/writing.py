"""Outputs of a table or figure: Markdown, LaTeX, CSV, PNG and PDF, each with its provenance."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote

from protonorm import __version__
from protonorm.core.text import markdown_code, markdown_text, visible
from protonorm.core.types import shown
from protonorm.files import make_folder, replace
from protonorm.reproduction.accuracy import accuracy_tables
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.profiles import cut_in_short, cuts
from protonorm.reproduction.study import Study
from protonorm.reproduction.tables import Table, accuracy_csv, latex, markdown, table_csv
from protonorm.runs.run import UNREADABLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.runs.run import Run

MARKS = {  # parts of the provenance that identify files written by this module
    ".md": (b"`, profile `", b"`, protonorm "),
    ".tex": (b", profile ", b", protonorm "),
    ".csv": (b",profile,version,command\n",),
}
HEAD = 2**16  # bytes that are searched for them
MOST = 6  # maximum cells named for one reason

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
    pictures += attempt(lambda: _save(findings, _figures(findings), folder), "Nothing was drawn") or []
    notes = [*remarks(findings), *failures]
    pages = {"md": page(findings, tables, [path for path in pictures if path.suffix == ".png"], notes)}
    if tables:
        pages["tex"] = "\n".join(_latex(findings, tables, notes))
    if study.columns or tables:
        pages["csv"] = accuracy_csv(findings) if study.columns else table_csv(findings, tables)
    texts = {folder / f"{study.name}.{ending}": text for ending, text in pages.items()}
    for path, text in texts.items():
        replace(path, text.encode(errors="backslashreplace"))
    return Written(findings, tables, notes, [*pictures, *texts])


def refuse_foreign_files(study: Study, folder: Path) -> None:
    """Raise a ValueError if a study's outputs would overwrite files that protonorm did not write."""
    from protonorm.report.drawing import refuse_foreign  # slow to import

    for path in (folder / f"{study.name}{ending}" for ending in MARKS):
        if os.path.lexists(path) and not _is_ours(path):
            raise ValueError(
                f"{path} exists and was not written by protonorm; it is left as it is. Give another folder."
            )
    figures = [study.name] if study.draw else []
    figures += [f"{_curves_name(study)}{study.ending}"] if study.columns else []
    refuse_foreign(folder / f"{name}{ending}" for name in figures for ending in (".png", ".pdf"))


def _is_ours(path: Path) -> bool:
    """Return whether a file states its provenance as our files do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    return all(mark in head for mark in MARKS[path.suffix])


def make_tables(findings: Findings) -> Sequence[Table]:
    """Build a study's tables; the explanation of each lists the reductions."""
    make = findings.study.tables or (accuracy_tables if findings.study.columns else None)
    made = make(findings) if make else ()
    cut = cut_in_short(findings)
    return [table._replace(explanation=f"{table.explanation} Cut: {cut}.".strip()) for table in made] if cut else made


def draw_curves(findings: Findings) -> Mapping[str, Figure]:
    """Draw accuracy over rounds: a panel for each column with a started run, and the first such seed of each row.

    Unfinished runs are marked. Printed numbers are shown if the profile gives results.
    """
    study, rows = findings.study, (*findings.rows, *findings.study.beside)
    panels: dict[str, dict[str, Run]] = {}
    for column in findings.columns:
        runs = {row: run for row in rows if (run := findings.run(row, column.place)) and run.rounds}
        panels |= {column.place: runs} if runs else {}
    if not panels:
        return {}
    from protonorm.report.paper_figures import accuracy_panels  # slow to import

    printed: dict[str, dict[str, float]] = {}
    for (row, place), number in study.paper.items():
        if findings.profile.is_result and number.mean is not None and row in panels.get(place, {}):
            printed.setdefault(place, {})[row] = number.mean
    return {_curves_name(study): accuracy_panels(panels, printed)}


def _curves_name(study: Study) -> str:
    """Return the name of the figure of a table's curves, without the suffix of a part."""
    return f"{study.name.removesuffix(study.ending)}-curves"


def _figures(findings: Findings) -> Mapping[str, Figure]:
    figures: Mapping[str, Figure] = findings.study.draw(findings) if findings.study.draw else {}
    for name in figures:
        if not name or name != Path(name).name:
            raise ValueError(f"{shown(name)} is refused as the name of a figure: expected a name without slashes.")
    return figures


def _save(findings: Findings, figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as PNG and PDF with their provenance; equal figures give equal files."""
    if not figures:
        return []
    from protonorm.report.drawing import save  # slow to import

    study, keys = findings.study, ", ".join(one.key for one in findings.outcomes if one.key and one.run)
    cut = f" Cut: {short}." if (short := cut_in_short(findings)) else ""
    told = f"{origin(findings).replace('`', '')}{cut} Runs: {keys}"
    paths = {folder / f"{name}{study.ending}": figure for name, figure in figures.items()}
    stamp = findings.profile.stamp
    return [path for base, figure in paths.items() for path in save(figure, base, study.title, told, stamp=stamp)]


def page(findings: Findings, tables: Sequence[Table], pictures: Sequence[Path], notes: Sequence[str]) -> str:
    """Render a study as one page of Markdown."""
    parts = [f"## {_stamp(findings)}{markdown_text(findings.study.title)}", "", origin(findings), ""]
    parts += [f"- {told}" for told in (*_about_protocol(findings), *cuts(findings))] + [""]
    parts += [markdown(table) for table in tables]
    parts += [f"![{markdown_text(path.stem)}]({quote(os.fsencode(path.name))})\n" for path in pictures]
    if notes:
        parts += ["**What is missing:**", "", *(f"- {markdown_text(note)}" for note in notes), ""]
    if findings.outcomes:
        parts += ["**Runs:**", "", "| cell | seed | state | key |", "| --- | --- | --- | --- |"]
        parts += [
            f"| {markdown_text(one.where)} | {one.seed} | {one.state} | `{one.key or '-'}` |"
            for one in findings.outcomes
        ]
        parts += [""]
    return "\n".join(parts)


def _latex(findings: Findings, tables: Sequence[Table], notes: Sequence[str]) -> list[str]:
    runs = dict.fromkeys(f"run {one.key}" for one in findings.outcomes if one.run)
    comments = [origin(findings).replace("`", ""), *_about_protocol(findings), *cuts(findings), *notes, *runs]
    lines = []
    for number, table in enumerate(tables):
        label = findings.study.name + (f"_{number}" if number else "")
        titled = table._replace(title=_stamp(findings) + table.title)
        lines.append(latex(titled, label, comments if not number else ()))
    return lines


def _stamp(findings: Findings) -> str:
    return f"{findings.profile.stamp}: " if findings.profile.stamp else ""


def _about_protocol(findings: Findings) -> Sequence[str]:
    """Describe the protocol, if the study has cells."""
    return (findings.protocol.sentence,) if findings.study.cells else ()


def origin(findings: Findings) -> str:
    """Return the provenance: command, profile, protocol and version, and the versions of the runs."""
    made = {
        " ".join(f"{name} {versions[name]}" for name in ("protonorm", "torch") if name in versions)
        for one in findings.outcomes
        if one.run and (versions := one.run.info.versions)
    }
    runs = f" Runs made with {'; '.join(sorted(made))}." if made else ""
    command = markdown_code(" ".join(findings.command.split()))
    part = f" {visible(findings.study.part)}" if findings.study.part else ""
    names = f"profile `{findings.profile.name}`, protocol `{findings.protocol.name}`"
    return f"{command}, {names}, protonorm {__version__}.{runs}{part}"


def remarks(findings: Findings) -> list[str]:
    """List what is missing, each reason once with its cells."""
    cells: dict[str, list[str]] = {}
    for one in findings.outcomes:
        if one.state in ("missing", "refused", "damaged"):
            cells.setdefault(" ".join(one.reason.split()), []).append(one.where)
        elif one.state != "finished":
            cells.setdefault(_standing(one), []).append(f"{one.where} (seed {one.seed})")
    return [f"{reason.rstrip('.')}: {_listed(list(dict.fromkeys(found)))}." for reason, found in cells.items()]


def _standing(one: Outcome) -> str:
    if one.state == "diverged" and one.run and one.run.failure:
        return f"Diverged in round {one.run.failure.round}"
    return f"Begun: {one.progress}" if one.state == "begun" else "Not run yet"


def _listed(cells: list[str]) -> str:
    more = f"; and {len(cells) - MOST} others" if len(cells) > MOST + 1 else ""
    return "; ".join(cells[:MOST] if more else cells) + more
