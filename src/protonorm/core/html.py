"""Tables for notebooks, which show the HTML that an object gives of itself. Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from protonorm.core.text import visible

MOST = 30  # rows that are shown


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> str:
    """Write a table: numbers to the right; of a long one the first rows, and how many there are."""
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST]]
    more = f"The first {MOST} of {len(rows)} rows. " if len(rows) > MOST else ""
    told = f"<p>{_text(more + note)}</p>" if more or note else ""
    caption = f"<caption>{_text(title)}</caption>"
    return f"<table>{caption}<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>{told}"


def percent(value: float | None) -> str:
    """Write a share in per cent; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def _cell(value: Any) -> str:
    """Write a cell; what is a number, or begins like one, stands to the right."""
    text = _text(value)
    right = text[:1].isdigit() or text[:1] in ("–", "−", "+")
    return f'<td style="text-align: {"right" if right else "left"}">{text}</td>'


def _text(value: Any) -> str:
    return escape(visible("–" if value is None else str(value)))
