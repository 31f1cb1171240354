"""The one style of tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protonorm.core.text import visible

ENDLESS = 10_000  # characters: more than any table needs


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    justify: Literal["left", "right"] = "left"
    no_wrap: bool = False


def make_table(
    title: str, columns: Iterable[Column | str], rows: Iterable[Sequence[str | Text]], caption: str = ""
) -> Table:
    """Lay out a table; what stands in it is text, never markup; a cell that is no Text already is one line of it."""
    table = Table(
        title=Text(visible(title)), caption=Text(visible_lines(caption)) if caption else None, box=SIMPLE_HEAD,
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    for column in columns:
        one = column if isinstance(column, Column) else Column(column)
        table.add_column(Text(visible_lines(one.heading)), justify=one.justify, no_wrap=one.no_wrap, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(visible(cell)) for cell in row))
    return table


def fits(table: Table, width: int) -> bool:
    """Tell whether a table has room in lines of so many characters."""
    return Console(width=ENDLESS).measure(table).maximum <= width


def visible_lines(text: str) -> str:
    """Write text so that a terminal shows it and obeys nothing in it; line breaks stay."""
    return "\n".join(map(visible, text.split("\n")))


def bold(text: str, wanted: bool = True) -> Text:
    """Write a text in one line, in bold type if wanted."""
    return Text(visible(text), style="bold" if wanted else "")


def entries_table(title: str, entries: Mapping[str, Any]) -> Table:
    """List what can be chosen by name."""
    details = sorted({column for entry in entries.values() for column in entry.details})
    rows = [
        [name, *(entry.details.get(column, "") for column in details), entry.summary] for name, entry in entries.items()
    ]
    return make_table(title, ["name", *details, "what it is"], rows)
