"""Numbers and lists as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def per_cent(value: float | None) -> str:
    """Write a part of one in per cent."""
    return "–" if value is None else f"{100 * value:.2f} %"


def size(count: float) -> str:
    """Write a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Write a time."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def listed(words: Sequence[str]) -> str:
    """Join words with commas, and `and` before the last."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(number: int, word: str) -> str:
    """Count things: 1 run, 2 runs."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def rounded(value: Any, digits: int = 2) -> float | None:
    """Shorten a number for the page; what is not finite becomes None."""
    if value is None or not math.isfinite(value):
        return None
    short = round(float(value), digits)
    return int(short) if short == int(short) else short


def significant(value: Any, digits: int = 4) -> float | None:
    """Shorten a number to its first digits; what is not finite becomes None."""
    return float(f"{float(value):.{digits}g}") if value is not None and math.isfinite(value) else None
