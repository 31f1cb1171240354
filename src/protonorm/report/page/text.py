"""Numbers, lists and settings as people read them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import yaml

from protonorm.config.parsing import parse_value
from protonorm.config.plain import load_plain
from protonorm.core.text import visible

WHOLE = 10**9  # floating numbers below it that are whole are written without a point


def per_cent(value: float | None) -> str:
    """Write a fraction of one in per cent."""
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


def listed(words: Sequence[str], most: int | None = None) -> str:
    """Join words with commas, and `and` before the last; of more than `most` words only the first ones are named."""
    if most is not None and len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(number: int, word: str, plural: str = "") -> str:
    """Count things: 1 run, 2 runs."""
    return f"{number} {word}" if number == 1 else f"{number} {plural or word + 's'}"


def rounded(value: Any, digits: int = 2) -> float | None:
    """Shorten a number for the page; what is not finite becomes None."""
    if value is None or not math.isfinite(value):
        return None
    short = round(float(value), digits)
    return int(short) if short == int(short) else short


def significant(value: Any, digits: int = 4) -> float | None:
    """Shorten a number to its first digits; what is not finite becomes None."""
    return float(f"{float(value):.{digits}g}") if value is not None and math.isfinite(value) else None


def setting_text(value: Any) -> str:
    """Write the value of a setting so that the command line reads it back."""
    if isinstance(value, float):
        written = repr(int(value)) if value == int(value) and abs(value) < WHOLE else repr(value)
        mantissa, e, power = written.partition("e")
        return f"{mantissa}.0e{power}" if e and "." not in mantissa else written  # YAML wants the point
    if isinstance(value, str):
        return value if _is_bare(value) else _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_member, value))}]"
    return json.dumps(value)


def _member(value: Any) -> str:
    """Write a value that stands in a list, where commas, brackets and colons mean something."""
    if not isinstance(value, str):
        return setting_text(value)
    try:
        return value if load_plain(f"[{value}]") == [value] else _quoted(value)
    except yaml.YAMLError:
        return _quoted(value)


def _is_bare(text: str) -> bool:
    """Tell whether the command line reads a text without quotes as that text; one with hidden signs is not left so."""
    try:
        return bool(parse_value("", text) == text and visible(text) == text)
    except ValueError:
        return False


def _quoted(text: str) -> str:
    """Write a text as YAML does in quotes, with visible escapes."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible(plain)}"'
