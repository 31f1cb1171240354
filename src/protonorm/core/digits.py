"""Numbers as they are written into files and tables. Nothing here needs numpy."""

from __future__ import annotations


def digits(value: float) -> float:
    """Keep six significant digits: enough for every table, and short in a file."""
    return float(f"{float(value):.6g}")
