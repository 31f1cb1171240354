"""The figure of distances: how far prototypes are apart during the first round's alignment.

The alignment stops as in the authors' program, like that of the figure of convergence, with which it shares runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .reproduction.cells import Cell
from .setting import AUTHORS_ALIGNMENT, DATASETS, practical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .reproduction.findings import Findings

TITLE = "Pairwise global prototype distance during PA iterations"

CELLS = [
    Cell(name, "ProtoNorm", practical(DATASETS[name]) | {"algorithm": AUTHORS_ALIGNMENT})
    for name in ("CIFAR-10", "CIFAR-100")
]


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw a panel for each data set whose first round is done."""
    from .figures import distance_curves, first_distances

    runs = {cell.row: run for cell in CELLS if (run := findings.run(cell.row, cell.column))}
    shown = {name: run for name, run in runs.items() if first_distances(run) is not None}
    return {"distances": distance_curves(shown)} if shown else {}
