"""Tables in Markdown, to paste into pages. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence

from protonorm.reproduction.table import Entry, Table


def markdown(table: Table) -> str:
    """Write one table; a second line in an entry stands below the first."""
    headings = [f"{group}: {name}" if group else name for group, name in _titled(table)]
    lines = [
        _line([table.corner, *map(escape, headings)]),
        _line(["---", *("---:" for _ in headings)]),
        *(_line([escape(row), *map(_entry, entries)]) for row, entries in table.rows),
    ]
    return "\n".join([f"### {table.title}", "", *lines, "", table.explanation, ""])


def escape(text: str) -> str:
    """Keep what Markdown would read as its own signs."""
    for sign in ("\\", "|", "*", "_", "<"):
        text = text.replace(sign, f"\\{sign}")
    return text


def _titled(table: Table) -> list[tuple[str, str]]:
    return list(zip(table.groups or [""] * len(table.columns), table.columns, strict=True))


def _entry(entry: Entry) -> str:
    text = f"**{escape(entry.text)}**" if entry.bold else escape(entry.text)
    return f"{text}<br>{escape(entry.below)}" if entry.below else text


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"
