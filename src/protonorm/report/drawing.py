"""What all figures have in common: names are text, and files carry a mark by which they are known as ours."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from protonorm.core.types import shortened
from protonorm.files import make_folder, replace

PROGRAM = "protonorm"  # in the metadata of every file, as the program that made it
KEYS = {".png": "Software", ".pdf": "Creator"}
MARKS = {".png": b"tEXtSoftware\0protonorm", ".pdf": b"/Creator (protonorm)"}
HEAD, TAIL = 2**12, 2**20  # bytes of a file's beginning and end in which its mark is sought
LONGEST = 24  # characters of a name beside a figure


def label_text(name: str, most: int = LONGEST) -> str:
    """Write a name for a figure: as it is, in one line, not too long, and never a formula or a hidden label."""
    text = shortened(name, most).replace("$", r"\$")  # two bare dollars would be a formula to matplotlib
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves labels out that begin so


@contextmanager
def any_letters() -> Iterator[None]:
    """Draw letters that the font lacks as boxes, without a word about each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def write_figure(figure: Figure, path: Path, dpi: int, **metadata: str) -> Path:
    """Write a figure with our mark; the ending of the name decides the format."""
    inside: dict[str, Any] = {KEYS[path.suffix]: PROGRAM, **metadata}
    if path.suffix == ".pdf":
        inside["CreationDate"] = None  # equal figures are equal files
    content = BytesIO()
    with any_letters():
        figure.savefig(content, format=path.suffix[1:], dpi=dpi, metadata=inside)
    make_folder(path.parent)
    replace(path, content.getvalue())
    return path


def refuse_foreign(paths: Iterable[Path]) -> None:
    """Refuse places where something is that is not a figure of ours."""
    for path in paths:
        if os.path.lexists(path) and not is_marked(path):
            raise ValueError(
                f"{path} exists and is not a figure of protonorm; it is left as it is. Give another folder."
            )


def is_marked(path: Path) -> bool:
    """Tell whether a file is a figure of ours."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, path.stat().st_size - TAIL))
        return MARKS[path.suffix] in head or MARKS[path.suffix] in file.read(TAIL)
