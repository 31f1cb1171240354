"""A table as plain data, for every form that it is written in. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class Entry(NamedTuple):
    """What stands in one place of a table."""

    text: str
    below: str = ""  # a second line: what the paper prints, and the difference
    bold: bool = False


class Table(NamedTuple):
    """A table: headings, columns, and rows of entries."""

    title: str
    corner: str  # heading of the rows
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]
    groups: Sequence[str] = ()  # a heading above each column; equal neighbours share one
    explanation: str = ""  # what the numbers are

    @property
    def headings(self) -> list[tuple[str, int]]:
        """Give the shared headings, each with the number of columns below it."""
        return [(name, len(list(same))) for name, same in groupby(self.groups)]
