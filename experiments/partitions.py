"""The figures of the data's distributions: who holds what, for four values of α. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from protonorm.reproduction.cells import Cell

from .setting import DATASETS, practical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.reproduction.findings import Findings

TITLE = "Data distributions for the practical settings of CIFAR-10 and CIFAR-100"

ALPHAS = (0.01, 0.1, 0.5, 1.0)

CELLS = [
    Cell(name, f"α={alpha:g}",
         practical(DATASETS[name], rounds=0) | {
             "algorithm": "local",
             # Ten classes cannot give twenty clients forty samples each at such an α; the authors' code asks for one.
             "partition": {"name": "dirichlet", "alpha": alpha} | ({"least": 1} if alpha < 0.1 else {}),
         })
    for name in ("CIFAR-10", "CIFAR-100")
    for alpha in ALPHAS
]  # fmt: skip


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw four maps for each data set."""
    from protonorm.report.partitions import heat_maps

    figures = {}
    for name in ("CIFAR-10", "CIFAR-100"):
        columns = [cell.column for cell in CELLS if cell.row == name]
        shown = {f"${column.replace('α', chr(92) + 'alpha')}$": run for column in columns
                 if (run := findings.run(name, column))}  # fmt: skip
        if shown:
            figures[f"partitions-{DATASETS[name]}"] = heat_maps(shown)
    return figures
