"""The figure of convergence: steps of the alignment and accuracy over rounds, by data set and width.

The alignment stops as in the authors' program, whose number of steps the figure shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .reproduction.cells import Cell
from .setting import AUTHORS_ALIGNMENT, DATASETS, practical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .reproduction.findings import Findings

TITLE = "Convergence analysis: number of PA iterations, and test accuracy"

WIDTHS = (64, 512)

CELLS = [
    Cell(
        f"{name}, d={width}",
        "ProtoNorm",
        practical(DATASETS[name], feature_dim=width) | {"algorithm": AUTHORS_ALIGNMENT},
    )
    for name in ("CIFAR-10", "CIFAR-100")
    for width in WIDTHS
]


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw every run that has begun."""
    from .figures import convergence

    shown = {cell.row: run for cell in CELLS if (run := findings.run(cell.row, cell.column))}
    return {"convergence": convergence(shown)} if shown else {}
