"""Tables in LaTeX, with the rules of the package booktabs, as UTF-8. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence

from protonorm.analysis.latex_text import comment, escape
from protonorm.analysis.latex_text import label as label_of
from protonorm.reproduction.tables import Table, TableEntry


def latex(table: Table, label: str, comments: Sequence[str]) -> str:
    """Write a table as an environment to paste; it needs the package booktabs, and LaTeX of 2018 or later for UTF-8."""
    lines = [
        *map(comment, comments),
        "% needs \\usepackage{booktabs}",
        "\\begin{table*}[t]",
        "  \\centering\\small",
        f"  \\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "    \\toprule",
        *_headings(table),
        "    " + _row([escape(table.corner), *map(escape, table.columns)]),
        "    \\midrule",
        *(line for row, entries in table.rows for line in _lines(row, entries)),
        "    \\bottomrule",
        "  \\end{tabular}",
        f"  \\caption{{{escape(table.title)}. {escape(table.explanation)}}}",
        f"  {label_of(label)}",
        "\\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _headings(table: Table) -> list[str]:
    if not table.groups:
        return []
    above, rules, first = [""], [], 2
    for name, count in table.headings:
        above.append(f"\\multicolumn{{{count}}}{{c}}{{{escape(name)}}}")
        rules.append(f"\\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return ["    " + _row(above), "    " + " ".join(rules)]


def _lines(row: str, entries: Sequence[TableEntry]) -> list[str]:
    lines = ["    " + _row([escape(row), *map(_ours, entries)])]
    for label, texts in (("best*", [one.best for one in entries]), ("printed", [one.below for one in entries])):
        if any(texts):
            below = [f"{{\\scriptsize {escape(text)}}}" if text else "" for text in texts]
            lines.append("    " + _row([f"{{\\scriptsize \\quad {escape(label)}}}", *below]))
    return lines if len(lines) == 1 else [*lines[:-1], lines[-1] + "[2pt]"]


def _ours(entry: TableEntry) -> str:
    return f"\\textbf{{{escape(entry.text)}}}" if entry.bold else escape(entry.text)


def _row(parts: Sequence[str]) -> str:
    return f"{' & '.join(parts)} \\\\"
