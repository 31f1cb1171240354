"""Networks at a part of their width: plain@0.5 has half the channels of plain. Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from protonorm.core.types import shown

SCALABLE = ("plain", "residual", "cnn4", "mlp")  # networks that can be had at a part of their width


def scaled(channels: int, width: float) -> int:
    """Count the channels of a layer at a width: ⌈rC⌉, at least one."""
    return max(1, math.ceil(channels * width - 1e-9))


def base_and_width(name: str) -> tuple[str, float]:
    """Read plain@0.5 as plain and 0.5; the width of a name without one is 1."""
    base, at, text = name.partition("@")
    if not at or ":" in base:  # timm:NAME@LAYER names a layer
        return name, 1.0
    try:
        width = float(text)
    except ValueError:
        width = math.nan
    if not 0 < width <= 1:
        raise ValueError(f"{shown(name)} is refused: expected a width above 0 and at most 1, such as {base}@0.5.")
    if base not in SCALABLE:
        raise ValueError(f"{shown(name)} is refused: {base} has one width; those with several: {', '.join(SCALABLE)}.")
    return base, width


def spelled_out(items: Iterable[Any]) -> list[Any]:
    """Read plain@1, 0.5, 0.25 as plain, plain@0.5, plain@0.25: a number continues the network before it."""
    found: list[Any] = []
    base = ""
    for item in items:
        name = f"{base}@{item}" if base and _is_number(item) else item
        base = ""
        if isinstance(name, str) and "@" in name and ":" not in name:
            base, width = base_and_width(name)
            name = base if width == 1 else f"{base}@{width!r}"
        found.append(name)
    return found


def widest(names: Sequence[Any]) -> Any:
    """Find the widest of several networks, all of which are one at some width; the first of equals."""
    return max(names, key=lambda name: base_and_width(name)[1] if isinstance(name, str) else 1.0)


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float | str) and str(item).replace(".", "", 1).isdigit()
