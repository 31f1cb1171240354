"""Tables of a reproduction in a terminal. Nothing here needs torch."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table as RichTable

from protonorm.reproduction.profiles import Profile
from protonorm.reproduction.table import Entry, Table


def terminal_table(table: Table, profile: Profile) -> RichTable:
    """Show a table; what the paper prints stands below ours."""
    smoke = "" if profile.beside else "SMOKE: "
    shown = RichTable(
        title=escape(smoke + table.title), box=SIMPLE_HEAD, title_justify="left", caption_justify="left",
        caption=escape(table.explanation),
    )  # fmt: skip
    shown.add_column(table.corner)
    before = ""
    for group, name in zip(table.groups or [""] * len(table.columns), table.columns, strict=True):
        shown.add_column(escape(f"{group}\n{name}" if group != before else name), justify="right")
        before = group  # stands above the first of its columns only
    for row, entries in table.rows:
        shown.add_row(escape(row), *map(_text, entries))
    return shown


def _text(entry: Entry) -> str:
    text = f"[bold]{escape(entry.text)}[/bold]" if entry.bold else escape(entry.text)
    return f"{text}\n[dim]{escape(entry.below)}[/dim]" if entry.below else text
