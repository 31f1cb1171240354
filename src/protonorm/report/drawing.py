"""Common parts of figures: text labels, files with the program's mark, and line styles of methods.

Does not import torch, and matplotlib only to draw.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.core.text import shortened
from protonorm.files import make_folder, replace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.runs.run import Run

DPI = 200
PROGRAM = "protonorm"  # written to the metadata of every file, as the program that made it
KEYS = {".png": "Software", ".pdf": "Creator"}
MARKS = {".png": b"tEXtSoftware\0protonorm", ".pdf": b"/Creator (protonorm)"}
HEAD, TAIL = 2**12, 2**20  # bytes at a file's beginning and end that are searched for the mark
LONGEST = 24  # maximum characters of a name beside a figure
# Twenty line styles for methods that are distinguishable and do not hide each other. Each list of colours begins with
# eight that colour-blind readers distinguish clearly. The others were chosen one by one, each as far as possible from
# all before it, under normal vision and under simulated lack of red, green or blue cones; all have enough contrast with
# their background. A test measures both.
LIGHT = (  # on white
    "#0a64b5", "#c24700", "#0fa55a", "#c378b4", "#4b3c0f", "#0f0078", "#696969", "#4b0f1e", "#9600ff", "#9669ff",
    "#870078", "#2d003c", "#1e0fc3", "#ff1e4b", "#699678", "#0f3c4b", "#8787f0", "#c30fc3", "#c38700", "#962d3c",
)  # fmt: skip
DARK = (  # on the page's dark background
    "#62b5ff", "#ff9b57", "#c3ffe1", "#c31ea5", "#ffe12d", "#694bff", "#96a5a5", "#d21e4b", "#0fff96", "#e10000",
    "#875a78", "#8769e1", "#009669", "#e1d2ff", "#e1ff78", "#d278c3", "#c39600", "#5a780f", "#78e1a5", "#b4b478",
)  # fmt: skip
SLOTS = len(LIGHT)
MARKED = 8  # approximate number of markers on a curve
NEAR = 0.5  # rounds and per cent: maximum distance of overlapping points
WIDER, MOST_AROUND = 0.5, 6  # relative growth of each enclosing ring, and maximum number of growths
MARKERS = ("o", "s", "^", "D", "v", "P", "h", "*", "X", "<")  # matplotlib's; filled for the first ten, then hollow
DASHES = (  # points drawn and skipped, alternating; empty for a solid line
    (), (7, 3), (1.5, 2.5), (8, 2, 1.5, 2), (12, 3), (5, 2, 1, 2, 1, 2), (1, 1.2), (8, 2, 4, 2),
    (14, 2, 1.5, 2, 1.5, 2), (4, 1.5),
)  # fmt: skip


def label_text(name: str, limit: int = LONGEST) -> str:
    """Return a name as a figure label: one line, truncated, and never parsed as a formula or a hidden label."""
    text = shortened(name, limit).replace("$", r"\$")  # matplotlib reads text between two dollars as a formula
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels that begin with an underscore


@contextmanager
def any_letters() -> Iterator[None]:
    """Silence the warnings about glyphs that the font lacks; they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def write_figure(figure: "Figure", path: Path, dpi: int = DPI, **metadata: str) -> Path:
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
            message = f"{path} exists and is not a figure of protonorm; it is left as it is. Give another folder."
            raise ValueError(message)


def is_marked(path: Path) -> bool:
    """Return whether a file is a figure of protonorm."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, path.stat().st_size - TAIL))
        return MARKS[path.suffix] in head or MARKS[path.suffix] in file.read(TAIL)


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


def slots(runs: "Mapping[str, Run]") -> dict[str, int]:
    """Return the line style of each method: ProtoNorm has the strongest, the others follow in their order."""
    names = sorted(runs, key=lambda name: runs[name].info.experiment.algorithm.name != "protonorm")
    return {name: slot for slot, name in enumerate(names)}


def marks_apart(slot: int, points: int, methods: int) -> tuple[int, int]:
    """Return the first marked point of a curve and the step, staggered between methods."""
    every = max(1, points // MARKED, min(methods, points))
    return slot % every, every


def ring_size(points: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]], smallest: float) -> float:
    """Return the size of the rings of points, such that they enclose earlier rings in the same place."""
    layers = [sum(abs(x - a) <= NEAR and abs(y - b) <= NEAR for a, b in before) for x, y in points]
    return smallest * (1 + WIDER * min(max(layers, default=0), MOST_AROUND))


def style_rules() -> str:
    """Return the colours of the page's style sheet: --s0, --s1, … for light and dark mode, and a class for each."""
    pairs = enumerate(zip(LIGHT, DARK, strict=True))
    colours = "\n".join(f"  --s{slot}: light-dark({light}, {dark});" for slot, (light, dark) in pairs)
    classes = " ".join(f".s{slot} {{ color: var(--s{slot}); }}" for slot in range(SLOTS))
    return f":root {{\n{colours}\n}}\n{classes}"
