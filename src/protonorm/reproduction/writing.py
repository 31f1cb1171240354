"""What is written of a table or figure: Markdown, LaTeX and CSV, PNG and PDF, each with where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protonorm import __version__
from protonorm.files import replace
from protonorm.reproduction.accuracy import accuracy_tables
from protonorm.reproduction.csvfile import accuracy_csv, table_csv
from protonorm.reproduction.findings import UNREADABLE, Findings, explain
from protonorm.reproduction.latex import latex
from protonorm.reproduction.markdown import escape, markdown
from protonorm.reproduction.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # cells that are named of those that lack the same thing


def write(findings: Findings, folder: Path) -> list[Path]:
    """Write everything there is to show of a study; what is missing is named in it."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = tables_of(findings)
    ending = findings.study.ending
    written = [
        path
        for name, figure in _figures(findings).items()
        for path in _save(findings, figure, folder / f"{name}{ending}")
    ]
    pages = {"md": page(findings, tables, [path for path in written if path.suffix == ".png"])}
    if tables:
        pages["tex"] = "\n".join(_latex(findings, tables))
    if findings.study.columns:
        pages["csv"] = accuracy_csv(findings)
    elif tables:
        pages["csv"] = table_csv(findings, tables)
    for ending, text in pages.items():
        written.append(folder / f"{findings.study.name}.{ending}")
        replace(written[-1], text.encode())
    return written


def tables_of(findings: Findings) -> Sequence[Table]:
    """Make a study's tables; one that a damaged record prevents is left out and named."""
    if findings.study.tables:
        try:
            return findings.study.tables(findings)
        except UNREADABLE as error:
            findings.failed["tables"] = f"The table was not made, because something could not be read: {explain(error)}"
            return ()
    return accuracy_tables(findings) if findings.study.columns else ()


def _figures(findings: Findings) -> Mapping[str, Figure]:
    """Draw a study's figures; those that a damaged record prevents are left out and named."""
    try:
        return findings.study.draw(findings) if findings.study.draw else {}
    except UNREADABLE as error:
        findings.failed["figures"] = f"Nothing was drawn, because something could not be read: {explain(error)}"
        return {}


def cuts(findings: Findings) -> Sequence[str]:
    """Say what the profile cut, if it cut anything of this study."""
    settings = [cell.settings for cell in findings.study.cells]
    return findings.profile.cuts if any(findings.profile.cut(one) != one for one in settings) else ()


def page(findings: Findings, tables: Sequence[Table], pictures: Sequence[Path]) -> str:
    """Put a study on one page of Markdown."""
    smoke = "" if findings.profile.beside else "SMOKE: "
    parts = [f"## {smoke}{findings.study.title}", "", *origin(findings), ""]
    parts += [f"- {cut}" for cut in cuts(findings)] + [""]
    parts += [markdown(table) for table in tables]
    parts += [f"![{escape(path.stem)}]({path.name})\n" for path in pictures]
    if notes := remarks(findings):
        parts += ["**What is missing:**", "", *(f"- {escape(note)}" for note in notes), ""]
    if findings.outcomes:
        parts += ["**Runs:**", "", "| cell | seed | state | key |", "| --- | --- | --- | --- |"]
        parts += [
            f"| {escape(one.cell.row)}, {escape(one.cell.column)} | {one.seed} | {one.state} | `{one.key or '-'}` |"
            for one in findings.outcomes
        ]
        parts += [""]
    return "\n".join(parts)


def origin(findings: Findings) -> list[str]:
    """Say which command, profile and version made it, and with which versions the runs were made."""
    made = {
        " ".join(f"{name} {held[name]}" for name in ("protonorm", "torch") if name in held)
        for one in findings.outcomes
        if one.run and (held := one.run.about.get("versions"))
    }
    runs = f" Runs made with {'; '.join(sorted(made))}." if made else ""
    command = " ".join(findings.command.split())
    part = f" {findings.study.part}" if findings.study.part else ""
    return [f"`{command}`, profile `{findings.profile.name}`, protonorm {__version__}.{runs}{part}"]


def remarks(findings: Findings) -> list[str]:
    """Name what is not there, each reason once with its cells."""
    reasons: dict[str, list[str]] = {}
    for one in findings.outcomes:
        where = f"{one.cell.row}, {one.cell.column}"
        if one.state in ("missing", "refused", "damaged"):
            reasons.setdefault(" ".join(one.reason.split()), []).append(where)
        elif one.state == "diverged" and one.run and one.run.failure:
            reasons.setdefault(f"Diverged in round {one.run.failure['round']}", []).append(f"{where} (seed {one.seed})")
        elif one.state == "begun" and one.run:
            rounds = f"{len(one.run.history)} of {one.run.experiment['rounds']} rounds"
            reasons.setdefault(f"Begun: {rounds}", []).append(f"{where} (seed {one.seed})")
        elif one.state == "absent":
            reasons.setdefault("Not run yet", []).append(f"{where} (seed {one.seed})")
    lacking = [f"{reason.rstrip('.')}: {_enumerated(list(dict.fromkeys(cells)))}." for reason, cells in reasons.items()]
    return [*lacking, *(f"{' '.join(reason.split()).rstrip('.')}." for reason in findings.failed.values())]


def _enumerated(cells: list[str]) -> str:
    more = f"; and {len(cells) - MOST} others" if len(cells) > MOST + 1 else ""
    return "; ".join(cells[:MOST] if more else cells) + more


def _latex(findings: Findings, tables: Sequence[Table]) -> list[str]:
    comments = [line.replace("`", "") for line in origin(findings)] + list(cuts(findings))
    comments += remarks(findings) + list(dict.fromkeys(f"run {one.key}" for one in findings.outcomes if one.run))
    smoke = "" if findings.profile.beside else "SMOKE: "
    lines = []
    for number, table in enumerate(tables):
        label = findings.study.name + (f"_{number}" if number else "")
        lines.append(latex(table._replace(title=smoke + table.title), label, comments if not number else ()))
    return lines


def _save(findings: Findings, figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and PDF that name where they came from; equal figures are equal files."""
    from protonorm.report.paper import save  # slow to import

    keys = ", ".join(one.key for one in findings.outcomes if one.key and one.run)
    told = f"{origin(findings)[0].replace('`', '')} Runs: {keys}"
    return save(figure, path, findings.study.title, told, stamp="" if findings.profile.beside else "SMOKE")
