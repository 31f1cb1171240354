"""How figures for a paper look, and how they are saved. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protonorm.core.text import visible
from protonorm.report.drawing import refuse_foreign, write_figure

COLUMN, FULL = 3.3, 6.9  # inches: one column of a page, or both
DPI = 300

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A800", "#000000")

ACROSS, KEY = 80, 12  # characters that a legend holds side by side; those that what is drawn before a name takes
ROW, FEW_ROWS = 0.15, 2  # inches of a legend's row; rows that a figure has room for as it is

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


def add_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Put a legend below a figure, in so many columns if the names are short; a long one makes the figure higher."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(columns, ACROSS // (KEY + max(map(len, labels), default=0))))
    rows = -(-len(labels) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + ROW * max(0, rows - FEW_ROWS))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.2)


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
