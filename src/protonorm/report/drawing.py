"""Common parts of figures: text labels, the program's mark in files, and the style of a paper."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.core.text import visible
from protonorm.core.types import shortened
from protonorm.files import make_folder, replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROGRAM = "protonorm"  # written to the metadata of every file, as the program that made it
KEYS = {".png": "Software", ".pdf": "Creator"}
MARKS = {".png": b"tEXtSoftware\0protonorm", ".pdf": b"/Creator (protonorm)"}
HEAD, TAIL = 2**12, 2**20  # bytes at a file's beginning and end that are searched for the mark
LONGEST = 24  # maximum characters of a name beside a figure
COLUMN, FULL = 3.3, 6.9  # inches: one column of a page, or both
DPI = 300

# Okabe and Ito's colours, which are distinguishable for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A800", "#000000")

ACROSS, KEY = 80, 12  # characters that fit side by side in a legend; characters that a legend key takes
ROW, FEW_ROWS = 0.15, 2  # inches per row of a legend; rows that fit without a taller figure

STYLE: Any = {  # matplotlib settings
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
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # embed fonts as TrueType, so that text stays text
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
}


def label_text(name: str, most: int = LONGEST) -> str:
    """Return a name as a figure label: one line, truncated, and never parsed as a formula or a hidden label."""
    text = shortened(name, most).replace("$", r"\$")  # matplotlib reads text between two dollars as a formula
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels that begin with an underscore


@contextmanager
def any_letters() -> Iterator[None]:
    """Silence the warnings about glyphs that the font lacks; they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def write_figure(figure: Figure, path: Path, dpi: int, **metadata: str) -> Path:
    """Write a figure with the program's mark; the suffix of the path determines the format."""
    inside: dict[str, Any] = {KEYS[path.suffix]: PROGRAM, **metadata}
    if path.suffix == ".pdf":
        inside["CreationDate"] = None  # equal figures give equal files
    content = BytesIO()
    with any_letters():
        figure.savefig(content, format=path.suffix[1:], dpi=dpi, metadata=inside)
    make_folder(path.parent)
    replace(path, content.getvalue())
    return path


def refuse_foreign(paths: Iterable[Path]) -> None:
    """Raise a ValueError if a path exists and is not a figure of protonorm."""
    for path in paths:
        if os.path.lexists(path) and not is_marked(path):
            raise ValueError(
                f"{path} exists and is not a figure of protonorm; it is left as it is. Give another folder."
            )


def is_marked(path: Path) -> bool:
    """Return whether a file is a figure of protonorm."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, path.stat().st_size - TAIL))
        return MARKS[path.suffix] in head or MARKS[path.suffix] in file.read(TAIL)


@contextmanager
def paper_style(**more: Any) -> Iterator[None]:
    """Apply the style of a paper inside this context."""
    import matplotlib  # slow to import
    from cycler import cycler

    with matplotlib.rc_context(STYLE | {"axes.prop_cycle": cycler(color=COLOURS)} | more):
        yield


def add_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Add a legend below a figure, in at most `columns` columns; a long legend makes the figure taller."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(columns, ACROSS // (KEY + max(map(len, labels), default=0))))
    rows = -(-len(labels) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + ROW * max(0, rows - FEW_ROWS))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.2)


def label(number: int, text: str) -> str:
    """Return the label of a panel as in the paper: (a) CIFAR-10."""
    return f"({chr(ord('a') + number)}) {text}"


def save(figure: Figure, path: Path, title: str, description: str, stamp: str = "") -> list[Path]:
    """Write a figure as PNG and PDF with title and description in the metadata; a stamp is printed across it."""
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "pdf")]
    refuse_foreign(files)
    if stamp:
        figure.text(0.5, 0.5, stamp, ha="center", va="center", rotation=20, fontsize=34, color="0.5", alpha=0.35)
    with paper_style():
        for file, key in zip(files, ("Description", "Subject"), strict=True):
            write_figure(figure, file, DPI, **{"Title": visible(title), key: visible(description)})
    return files
