"""Parts of a table or figure: cells to run, and the numbers printed in the paper. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Settings = Mapping[str, Any]
Place = tuple[str, str]  # row, column

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "flowers102": "Flowers-102", "tinyimagenet": "Tiny ImageNet"}
NUMBER = re.compile(r"(?P<mean>\d+\.\d+)(?: ± (?P<std>\d+\.\d+))?")


@dataclass(frozen=True)
class Cell:
    """Experiment of a table or figure, as in the paper; a profile may reduce it, and seeds repeat it."""

    row: str
    column: str
    settings: Settings

    @property
    def place(self) -> Place:
        """Row and column."""
        return self.row, self.column


class Printed(NamedTuple):
    """Number as printed, in per cent."""

    mean: float | None  # None for '-': it did not converge
    std: float | None = None  # over seeds, where it is printed

    def __str__(self) -> str:
        """Format it as printed."""
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return "-" if self.mean is None else f"{self.mean:.2f}{spread}"


class Column(NamedTuple):
    """Column of a table, below the heading that it shares with its neighbours."""

    name: str
    group: str = ""

    @property
    def place(self) -> str:
        """Name with its heading: columns below other headings may have the same name."""
        return f"{self.group}: {self.name}" if self.group else self.name


def printed(columns: Sequence[Column], text: str) -> dict[Place, Printed]:
    """Parse lines `row | number | number | …`, one number for each column."""
    found: dict[Place, Printed] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        row, *numbers = (part.strip() for part in line.split("|"))
        if len(numbers) != len(columns):
            raise ValueError(f"The line {line!r} has {len(numbers)} numbers for {len(columns)} columns.")
        for column, number in zip(columns, numbers, strict=True):
            found[row, column.place] = _read(number, line)
    return found


def _read(number: str, line: str) -> Printed:
    if number == "-":
        return Printed(None)
    match = NUMBER.fullmatch(number)
    if not match:
        raise ValueError(f"{number!r} in the line {line!r} is not a number such as 47.41 ± 0.40, nor '-'.")
    return Printed(float(match["mean"]), float(match["std"]) if match["std"] else None)
