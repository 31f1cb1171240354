"""How figures for a paper look, and how they are saved. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

from protonorm.core.text import visible
from protonorm.report.drawing import refuse_foreign, write_figure

COLUMN, FULL = 3.3, 6.9  # inches: one column of a page, or both
DPI = 300

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A800", "#000000")
LINES = ("-", "--", "-.", ":")

STYLE: Any = {  # of matplotlib's settings
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],  # both come with matplotlib
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # letters stay letters
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
}


@contextmanager
def paper_style(**more: Any) -> Iterator[None]:
    """Draw in the style of a paper."""
    with matplotlib.rc_context(STYLE | more):
        yield


def colour_and_line(number: int) -> tuple[str, str]:
    """Choose how a run is drawn; no two of the first 32 have both the colour and the kind of line in common."""
    again = number // len(COLOURS)  # once the colours are used up, each comes with another line
    return COLOURS[number % len(COLOURS)], LINES[(number + again) % len(LINES)]


def label(number: int, text: str) -> str:
    """Name a panel as the paper does: (a) CIFAR-10."""
    return f"({chr(ord('a') + number)}) {text}"


def save(figure: Figure, path: Path, title: str, description: str, stamp: str = "") -> list[Path]:
    """Write a figure as PNG and PDF with title and description inside; a stamp is printed across it."""
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "pdf")]
    refuse_foreign(files)
    if stamp:
        figure.text(0.5, 0.5, stamp, ha="center", va="center", rotation=20, fontsize=34, color="0.5", alpha=0.35)
    with paper_style():
        for file, key in zip(files, ("Description", "Subject"), strict=True):
            write_figure(figure, file, DPI, **{"Title": visible(title), key: visible(description)})
    return files
