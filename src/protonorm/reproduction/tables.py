"""Tables as plain data, and their output as Markdown, LaTeX with booktabs, and CSV. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from protonorm import __version__
from protonorm.analysis.comparison import Reported
from protonorm.core.text import csv_lines, latex_comment, latex_label, latex_text, markdown_text
from protonorm.reproduction.findings import Findings, Outcome, finished_runs, share_of_seeds
from protonorm.reproduction.profiles import cut_in_short

CSV_COLUMNS = (
    "row", "column", "seed", "seeds", "state", "rule", "headline", "accuracy", "round", "chosen_by", "clients", "worst",
    "best", "best_round", "last", "own_best", "paper", "paper_std", "key", "note",
)  # fmt: skip
ORIGIN = ("cut", "protocol", "profile", "version", "command")  # last columns of every line


class TableEntry(NamedTuple):
    """Entry of a table."""

    text: str
    below: str = ""  # second line: the printed number, and the difference
    bold: bool = False
    best: str = ""  # line between: the best test round, which is optimistic

    @property
    def lines(self) -> list[str]:
        """Lines below the number."""
        return [*([f"best* {self.best}"] if self.best else []), *([self.below] if self.below else [])]


class Table(NamedTuple):
    """Table: headings, columns, and rows of entries."""

    title: str
    corner: str  # heading of the rows
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[TableEntry]]]
    groups: Sequence[str] = ()  # heading above each column; equal neighbours share one
    explanation: str = ""  # what the numbers are

    @property
    def titled_columns(self) -> list[tuple[str, str]]:
        """Columns, each with its shared heading, which may be empty."""
        return list(zip(self.groups or [""] * len(self.columns), self.columns, strict=True))


def markdown(table: Table) -> str:
    """Render a table as Markdown; further lines of an entry are below its number."""

    def entry(one: TableEntry) -> str:
        text = f"**{markdown_text(one.text)}**" if one.bold else markdown_text(one.text)
        return "<br>".join([text, *map(markdown_text, one.lines)])

    headings = [f"{group}: {name}" if group else name for group, name in table.titled_columns]
    lines = [
        [markdown_text(table.corner), *map(markdown_text, headings)],
        ["---", *("---:" for _ in headings)],
        *([markdown_text(row), *map(entry, entries)] for row, entries in table.rows),
    ]
    body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"### {markdown_text(table.title)}", "", *body, "", markdown_text(table.explanation), ""])


def latex(table: Table, label: str, comments: Sequence[str]) -> str:
    """Render a table as a LaTeX environment; it needs booktabs, and LaTeX of 2018 or later for UTF-8."""
    lines = [
        *map(latex_comment, comments),
        "% needs \\usepackage{booktabs}",
        "\\begin{table*}[t]",
        "  \\centering\\small",
        f"  \\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "    \\toprule",
        *_latex_headings(table),
        _latex_row([latex_text(table.corner), *map(latex_text, table.columns)]),
        "    \\midrule",
        *(line for row, entries in table.rows for line in _latex_lines(row, entries)),
        "    \\bottomrule",
        "  \\end{tabular}",
        f"  \\caption{{{latex_text(table.title)}. {latex_text(table.explanation)}}}",
        f"  {latex_label(label)}",
        "\\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _latex_headings(table: Table) -> list[str]:
    """Render the shared headings above the columns, with a rule below each."""
    if not table.groups:
        return []
    above, rules, first = [""], [], 2
    for name, same in groupby(table.groups):
        count = len(list(same))
        above.append(f"\\multicolumn{{{count}}}{{c}}{{{latex_text(name)}}}")
        rules.append(f"\\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return [_latex_row(above), "    " + " ".join(rules)]


def _latex_lines(row: str, entries: Sequence[TableEntry]) -> list[str]:
    ours = [f"\\textbf{{{latex_text(one.text)}}}" if one.bold else latex_text(one.text) for one in entries]
    lines = [_latex_row([latex_text(row), *ours])]
    for label, texts in (("best*", [one.best for one in entries]), ("printed", [one.below for one in entries])):
        if any(texts):
            below = [f"{{\\scriptsize {latex_text(text)}}}" if text else "" for text in texts]
            lines.append(_latex_row([f"{{\\scriptsize \\quad {latex_text(label)}}}", *below]))
    return lines if len(lines) == 1 else [*lines[:-1], lines[-1] + "[2pt]"]


def _latex_row(parts: Sequence[str]) -> str:
    return f"    {' & '.join(parts)} \\\\"


def accuracy_csv(findings: Findings) -> str:
    """Render every cell as CSV, also cells without a number: accuracies in per cent, a line for each seed and rule.

    `accuracy`, `clients` and `worst` are those of the reported `round`; `best` and `own_best` are optimistic; `seeds`
    counts the finished seeds of the cell. An unfinished run has a line without numbers.
    """
    lines = [line for outcome in findings.outcomes for line in _csv_lines(findings, outcome)]
    return _csv(findings, CSV_COLUMNS, [[line.get(name, "") for name in CSV_COLUMNS] for line in lines])


def table_csv(findings: Findings, tables: Sequence[Table]) -> str:
    """Render the entries of other tables as CSV, as they are shown."""
    titles = (tables[0].corner, *tables[0].columns)
    return _csv(findings, titles, [[row, *(one.text for one in line)] for table in tables for row, line in table.rows])


def _csv(findings: Findings, titles: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
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
        common | _csv_numbers(found) | {"rule": rule, "headline": rule == run.info.headline}
        for rule, found in outcome.reported.items()
    ]


def _csv_numbers(found: Reported | None) -> dict[str, Any]:
    if found is None:
        return {}
    _, choice, chosen, beside = found
    shares = {"accuracy": chosen.pooled, "clients": chosen.mean, "worst": chosen.worst} if chosen else {}
    shares |= {"best": beside.best.pooled, "last": beside.last.pooled, "own_best": beside.own_best}
    rounds = {"round": choice.record.round, "chosen_by": choice.by} if choice else {}
    return {name: f"{100 * share:.4f}" for name, share in shares.items()} | rounds | {"best_round": beside.best.round}
