"""A table as plain data, for every form that it is written in, and its Markdown. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from protonorm.analysis.plain_text import markdown_text


class TableEntry(NamedTuple):
    """What stands in one place of a table."""

    text: str
    below: str = ""  # a second line: what the paper prints, and the difference
    bold: bool = False
    best: str = ""  # a line between: the best test round, which is optimistic

    @property
    def lines(self) -> list[str]:
        """List what stands below the number."""
        return [*([f"best* {self.best}"] if self.best else []), *([self.below] if self.below else [])]


class Table(NamedTuple):
    """A table: headings, columns, and rows of entries."""

    title: str
    corner: str  # heading of the rows
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[TableEntry]]]
    groups: Sequence[str] = ()  # a heading above each column; equal neighbours share one
    explanation: str = ""  # what the numbers are

    @property
    def headings(self) -> list[tuple[str, int]]:
        """List the shared headings, each with the number of columns below it."""
        return [(name, len(list(same))) for name, same in groupby(self.groups)]

    @property
    def titled_columns(self) -> list[tuple[str, str]]:
        """List the columns, each with its shared heading, which may be empty."""
        return list(zip(self.groups or [""] * len(self.columns), self.columns, strict=True))


def markdown(table: Table) -> str:
    """Write a table in Markdown; what else an entry has stands below its number."""
    headings = [f"{group}: {name}" if group else name for group, name in table.titled_columns]
    lines = [
        _line([markdown_text(table.corner), *map(markdown_text, headings)]),
        _line(["---", *("---:" for _ in headings)]),
        *(_line([markdown_text(row), *map(_entry, entries)]) for row, entries in table.rows),
    ]
    return "\n".join([f"### {markdown_text(table.title)}", "", *lines, "", markdown_text(table.explanation), ""])


def _entry(entry: TableEntry) -> str:
    text = f"**{markdown_text(entry.text)}**" if entry.bold else markdown_text(entry.text)
    return "<br>".join([text, *map(markdown_text, entry.lines)])


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"
