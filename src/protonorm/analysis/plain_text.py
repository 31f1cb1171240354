"""Names that come from outside in CSV and Markdown: shown as they are, whatever characters they have. No torch here."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from protonorm.core.text import spreadsheet, visible

MARKUP = re.compile(r"([\\`*_{}\[\]<>#&$~|!])")  # signs that may mean something in Markdown
NUMBER = re.compile(r"[-−]?\d[\d,]*(\.\d+)?([eE][-+]?\d+)?|-")  # ours: a number, or the dash in its place


def csv_lines(lines: Iterable[Sequence[Any]]) -> str:
    """Write lines as CSV; a spreadsheet takes no text in it for a formula."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in line] for line in lines)
    return text.getvalue()


def markdown_text(text: str) -> str:
    """Write text so that Markdown shows its signs as they are, in one line."""
    return MARKUP.sub(r"\\\1", visible(text))


def markdown_code(text: str) -> str:
    """Write text as code in a line of Markdown."""
    line = visible(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _cell(value: Any) -> Any:
    return spreadsheet(value) if isinstance(value, str) and not NUMBER.fullmatch(value) else value
