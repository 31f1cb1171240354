"""The table of a comparison for a paper (LaTeX) and for a README or an issue (Markdown). Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protonorm.analysis import latex_text
from protonorm.analysis.captions import caption
from protonorm.analysis.contrasts import Contrast
from protonorm.analysis.latex_text import escape
from protonorm.analysis.plain_text import markdown_text
from protonorm.analysis.row import COLUMNS, Row
from protonorm.analysis.transfer import points
from protonorm.core.text import visible

SHOWN = ("accuracy", "mean", "worst")  # columns of accuracies; those that are optimistic are left out
MARK = "Written by protonorm compare"  # by which a file of ours is known
REFERENCES = {"local": "gain on local", "solo": "gain on solo"}


class Cell(NamedTuple):
    """What stands in a place of the table."""

    text: str
    bold: bool = False


class PrintedTable(NamedTuple):
    """A table of plain text: headings, whether their columns hold numbers, lines, and the caption's sentences."""

    title: str
    columns: list[tuple[str, bool]]
    lines: list[list[Cell]]
    caption: list[str]


def printed_table(title: str, rows: Sequence[Row]) -> PrintedTable:
    """Lay out the rows of a comparison: accuracies, and gains on the references that there are."""
    kinds = [kind for kind in REFERENCES if any(_contrast(row, kind) for row in rows)]
    columns = [("method", False), ("rule", False), *((COLUMNS[name][0], True) for name in SHOWN)]
    columns += [one for kind in kinds for one in ((REFERENCES[kind], True), ("lose", True), ("verdict", False))]
    lines = []
    previous = None
    for row in rows:
        line = [Cell("" if row.method == previous else row.method), Cell("–" if row.is_majority else row.rule)]
        line += [Cell(str(row.cells.get(name) or "–"), row.stands_out and name == "accuracy") for name in SHOWN]
        lines.append(line + [Cell(text) for kind in kinds for text in gain_cells(_contrast(row, kind))])
        previous = row.method
    return PrintedTable(title, columns, lines, caption(rows, SHOWN, gains=bool(kinds)))


def gain_cells(contrast: Contrast | None) -> list[str]:
    """Write what a method gains against a reference, with its interval; how many lose; and the verdict."""
    if contrast is None:
        return ["", "", ""]
    found = contrast.transfer
    if found is None:
        return ["–", "–", "not comparable"]
    interval = f" [{points(found.interval.low)}, {points(found.interval.high)}]" if found.interval else ""
    return [f"{points(found.mean)}{interval}", f"{100 * found.negative:.0f} %", found.verdict or "no interval"]


def latex_table(table: PrintedTable, comments: Sequence[str] = (), label: str = "comparison") -> str:
    """Write it as an environment to paste; it needs the package booktabs, and LaTeX of 2018 or later for UTF-8."""
    lines = [
        *map(latex_text.comment, [MARK, *comments, "needs \\usepackage{booktabs}"]),
        "\\begin{table*}[t]",
        "  \\centering\\small",
        f"  \\begin{{tabular}}{{{''.join('r' if number else 'l' for _, number in table.columns)}}}",
        "    \\toprule",
        _latex_row([escape(name) for name, _ in table.columns]),
        "    \\midrule",
        *(_latex_row([f"\\textbf{{{escape(one.text)}}}" if one.bold else escape(one.text) for one in line])
          for line in table.lines),
        "    \\bottomrule",
        "  \\end{tabular}",
        f"  \\caption{{{escape(f'{table.title}. ')}{escape(' '.join(table.caption))}}}",
        f"  {latex_text.label(label)}",
        "\\end{table*}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def markdown_table(table: PrintedTable, comments: Sequence[str] = ()) -> str:
    """Write it with the caption's sentences below, a paragraph each."""
    hidden = [f"<!-- {visible(' '.join(one.split())).replace('-->', '-- >')} -->" for one in [MARK, *comments]]
    lines = [
        *hidden,
        f"### {markdown_text(table.title)}",
        "",
        _markdown_row([markdown_text(name) for name, _ in table.columns]),
        _markdown_row(["---:" if number else "---" for _, number in table.columns]),
        *(_markdown_row([f"**{markdown_text(one.text)}**" if one.bold else markdown_text(one.text) for one in line])
          for line in table.lines),
        *(line for sentence in table.caption for line in ("", markdown_text(sentence))),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _contrast(row: Row, kind: str) -> Contrast | None:
    return row.local if kind == "local" else row.solo


def _latex_row(parts: Sequence[str]) -> str:
    return f"    {' & '.join(parts)} \\\\"


def _markdown_row(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"
