"""What is written of a table or figure: Markdown, LaTeX and CSV, PNG and PDF, each with where it came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote

from protonorm import __version__
from protonorm.analysis.plain_text import markdown_code, markdown_text
from protonorm.analysis.reading import UNREADABLE
from protonorm.core.text import visible
from protonorm.core.types import shown
from protonorm.files import make_folder, replace
from protonorm.reproduction.accuracy import accuracy_tables
from protonorm.reproduction.csv_tables import accuracy_csv, table_csv
from protonorm.reproduction.curves import curves_name, draw_curves
from protonorm.reproduction.cutting import cut_in_short, cuts
from protonorm.reproduction.findings import Findings, Outcome
from protonorm.reproduction.latex import latex
from protonorm.reproduction.study import Study
from protonorm.reproduction.tables import Table, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = {  # parts of what texts of ours say about where they came from
    ".md": (b"`, profile `", b"`, protonorm "),
    ".tex": (b", profile ", b", protonorm "),
    ".csv": (b",profile,version,command\n",),
}
HEAD = 2**16  # bytes in which they are sought

MOST = 6  # cells that are named of those that lack the same thing

Made = TypeVar("Made")


class Written(NamedTuple):
    """What was made of a study."""

    findings: Findings
    tables: Sequence[Table]
    remarks: list[str]  # what is missing, in sentences
    paths: list[Path]


def write(findings: Findings, folder: Path) -> Written:
    """Write everything there is to show of a study; what is missing, or cannot be made, is named in it."""
    make_folder(folder)
    failures: list[str] = []
    tables = _attempt(lambda: make_tables(findings), "The table was not made", failures) or ()
    pictures = _attempt(lambda: _save_curves(findings, folder), "The curves were not drawn", failures) or []
    pictures += _attempt(lambda: _save_figures(findings, folder), "Nothing was drawn", failures) or []
    notes = [*remarks(findings), *failures]
    pages = {"md": page(findings, tables, [path for path in pictures if path.suffix == ".png"], notes)}
    if tables:
        pages["tex"] = "\n".join(_latex(findings, tables, notes))
    if findings.study.columns:
        pages["csv"] = accuracy_csv(findings)
    elif tables:
        pages["csv"] = table_csv(findings, tables)
    texts = {folder / f"{findings.study.name}.{ending}": text for ending, text in pages.items()}
    for path, text in texts.items():
        replace(path, text.encode(errors="backslashreplace"))
    return Written(findings, tables, notes, [*pictures, *texts])


def refuse_foreign_files(study: Study, folder: Path) -> None:
    """Refuse a folder in which something is that a study's files would replace and that is not ours."""
    from protonorm.report.drawing import refuse_foreign  # slow to import

    for path in (folder / f"{study.name}{ending}" for ending in MARKS):
        if os.path.lexists(path) and not _is_ours(path):
            raise ValueError(
                f"{path} exists and was not written by protonorm; it is left as it is. Give another folder."
            )
    figures = [study.name] if study.draw else []
    figures += [f"{curves_name(study)}{study.ending}"] if study.columns else []
    refuse_foreign(folder / f"{name}{ending}" for name in figures for ending in (".png", ".pdf"))


def _is_ours(path: Path) -> bool:
    """Tell whether a text says where it came from, as ours do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    return all(mark in head for mark in MARKS[path.suffix])


def make_tables(findings: Findings) -> Sequence[Table]:
    """Make a study's tables; below each stands what was cut."""
    make = findings.study.tables or (accuracy_tables if findings.study.columns else None)
    made = make(findings) if make else ()
    cut = cut_in_short(findings)
    return [table._replace(explanation=f"{table.explanation} Cut: {cut}.".strip()) for table in made] if cut else made


def _save_curves(findings: Findings, folder: Path) -> list[Path]:
    return _save_all(findings, draw_curves(findings) if findings.study.columns else {}, folder)


def _save_figures(findings: Findings, folder: Path) -> list[Path]:
    figures: Mapping[str, Figure] = findings.study.draw(findings) if findings.study.draw else {}
    for name in figures:
        if not name or name != Path(name).name:
            raise ValueError(f"{shown(name)} is refused as the name of a figure: expected a name without slashes.")
    return _save_all(findings, figures, folder)


def _save_all(findings: Findings, figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    ending = findings.study.ending
    return [path for name, one in figures.items() for path in _save(findings, one, folder / f"{name}{ending}")]


def _attempt(make: Callable[[], Made], otherwise: str, failures: list[str]) -> Made | None:
    """Make something; a damaged record or a mistake in the study's own function is noted, and the rest goes on."""
    try:
        return make()
    except UNREADABLE as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    failures.append(f"{otherwise}: {visible(' '.join(reason.split())).rstrip('.')}.")
    return None


def about_protocol(findings: Findings) -> Sequence[str]:
    """Say what the protocol means, if anything is run."""
    return (findings.protocol.sentence,) if findings.study.cells else ()


def page(findings: Findings, tables: Sequence[Table], pictures: Sequence[Path], notes: Sequence[str]) -> str:
    """Put a study on one page of Markdown."""
    parts = [f"## {_stamp(findings)}{markdown_text(findings.study.title)}", "", origin(findings), ""]
    parts += [f"- {told}" for told in (*about_protocol(findings), *cuts(findings))] + [""]
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


def origin(findings: Findings) -> str:
    """Say which command, profile, protocol and version made it, and with which versions the runs were made."""
    made = {
        " ".join(f"{name} {held[name]}" for name in ("protonorm", "torch") if name in held)
        for one in findings.outcomes
        if one.run and (held := one.run.info.versions)
    }
    runs = f" Runs made with {'; '.join(sorted(made))}." if made else ""
    command = markdown_code(" ".join(findings.command.split()))
    part = f" {visible(findings.study.part)}" if findings.study.part else ""
    names = f"profile `{findings.profile.name}`, protocol `{findings.protocol.name}`"
    return f"{command}, {names}, protonorm {__version__}.{runs}{part}"


def remarks(findings: Findings) -> list[str]:
    """Name what is not there, each reason once with its cells."""
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


def _latex(findings: Findings, tables: Sequence[Table], notes: Sequence[str]) -> list[str]:
    runs = dict.fromkeys(f"run {one.key}" for one in findings.outcomes if one.run)
    comments = [origin(findings).replace("`", ""), *about_protocol(findings), *cuts(findings), *notes, *runs]
    lines = []
    for number, table in enumerate(tables):
        label = findings.study.name + (f"_{number}" if number else "")
        titled = table._replace(title=_stamp(findings) + table.title)
        lines.append(latex(titled, label, comments if not number else ()))
    return lines


def _save(findings: Findings, figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and PDF that say where they came from; equal figures are equal files."""
    from protonorm.report.style import save  # slow to import

    keys = ", ".join(one.key for one in findings.outcomes if one.key and one.run)
    cut = f" Cut: {short}." if (short := cut_in_short(findings)) else ""
    told = f"{origin(findings).replace('`', '')}{cut} Runs: {keys}"
    return save(figure, path, findings.study.title, told, stamp=findings.profile.stamp)


def _stamp(findings: Findings) -> str:
    return f"{findings.profile.stamp}: " if findings.profile.stamp else ""
