"""Twenty line styles for methods that are distinguishable and do not hide each other. Does not import torch.

Each list of colours begins with eight that colour-blind readers distinguish clearly. The others were chosen one by one,
each as far as possible from all before it, under normal vision and under simulated lack of red, green or blue cones;
all have enough contrast with their background. A test measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LIGHT = (  # on white
    "#0a64b5", "#c24700", "#0fa55a", "#c378b4", "#4b3c0f", "#0f0078", "#696969", "#4b0f1e", "#9600ff", "#9669ff",
    "#870078", "#2d003c", "#1e0fc3", "#ff1e4b", "#699678", "#0f3c4b", "#8787f0", "#c30fc3", "#c38700", "#962d3c",
)  # fmt: skip
DARK = (  # on the page's dark background
    "#62b5ff", "#ff9b57", "#c3ffe1", "#c31ea5", "#ffe12d", "#694bff", "#96a5a5", "#d21e4b", "#0fff96", "#e10000",
    "#875a78", "#8769e1", "#009669", "#e1d2ff", "#e1ff78", "#d278c3", "#c39600", "#5a780f", "#78e1a5", "#b4b478",
)  # fmt: skip
SLOTS = len(LIGHT)
MARKS = 8  # approximate number of markers on a curve
NEAR = 0.5  # rounds and per cent: maximum distance of overlapping points
WIDER, MOST_AROUND = 0.5, 6  # relative growth of each enclosing ring, and maximum number of growths

MARKERS = ("o", "s", "^", "D", "v", "P", "h", "*", "X", "<")  # matplotlib's; filled for the first ten, then hollow
DASHES = (  # points drawn and skipped, alternating; empty for a solid line
    (), (7, 3), (1.5, 2.5), (8, 2, 1.5, 2), (12, 3), (5, 2, 1, 2, 1, 2), (1, 1.2), (8, 2, 4, 2),
    (14, 2, 1.5, 2, 1.5, 2), (4, 1.5),
)  # fmt: skip


def line_style(slot: int) -> dict[str, Any]:
    """Return matplotlib's settings for the line of a method; no two of the first twenty share a colour or marker."""
    colour, dashes = LIGHT[slot % SLOTS], DASHES[slot % len(DASHES)]
    hollow = slot % SLOTS >= len(MARKERS)
    return {
        "color": colour,
        "linestyle": (0, dashes) if dashes else "-",
        "marker": MARKERS[slot % len(MARKERS)],
        "markersize": 4.5,
        "markerfacecolor": "white" if hollow else colour,
        "markeredgecolor": colour,
    }


def marks_apart(slot: int, points: int, methods: int) -> tuple[int, int]:
    """Return the first marked point of a curve and the step, staggered between methods."""
    every = max(1, points // MARKS, min(methods, points))
    return slot % every, every


def ring_size(points: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]], smallest: float) -> float:
    """Return the size of the rings of points, such that they enclose earlier rings in the same place."""
    under = [sum(abs(x - a) <= NEAR and abs(y - b) <= NEAR for a, b in before) for x, y in points]
    return smallest * (1 + WIDER * min(max(under, default=0), MOST_AROUND))


def style_rules() -> str:
    """Return the colours of the page's style sheet: --s0, --s1, … for light and dark mode, and a class for each."""
    pairs = enumerate(zip(LIGHT, DARK, strict=True))
    colours = "\n".join(f"  --s{slot}: light-dark({light}, {dark});" for slot, (light, dark) in pairs)
    classes = " ".join(f".s{slot} {{ color: var(--s{slot}); }}" for slot in range(SLOTS))
    return f":root {{\n{colours}\n}}\n{classes}"
