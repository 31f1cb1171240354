"""The figure of convergence: steps of the alignment and accuracy over rounds, by data set and width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from protonorm.reproduction.cells import Cell

from .setting import DATASETS, practical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.reproduction.findings import Findings

TITLE = "Convergence analysis: number of PA iterations, and test accuracy"

WIDTHS = (64, 512)

CELLS = [
    Cell(f"{name}, d={width}", "ProtoNorm",
         practical(DATASETS[name], feature_dim=width) | {"algorithm": {"name": "protonorm", "alignment": "paper"}})
    for name in ("CIFAR-10", "CIFAR-100")
    for width in WIDTHS
]  # fmt: skip


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw what has begun; under a profile that makes runs equal, each is drawn once."""
    from protonorm.report.convergence import convergence

    shown = {cell.row: run for cell in CELLS if (run := findings.run(cell.row, cell.column))}
    return {"convergence": convergence(shown)} if shown else {}
