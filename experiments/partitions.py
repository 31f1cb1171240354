"""The figures of data distributions: how many samples each client has of each class, for four values of α.

Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .reproduction.cells import Cell
from .reproduction.profiles import Settings
from .setting import DATASETS, practical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .reproduction.findings import Findings

TITLE = "Data distributions for the practical settings of CIFAR-10 and CIFAR-100"

ALPHAS = (0.01, 0.1, 0.5, 1.0)


def settings(dataset: str, alpha: float) -> Settings:
    """Assign the samples to the clients, and run no round."""
    # Ten classes cannot give twenty clients forty samples each at such an α; the authors' code asks for one.
    fewest = {"least": 1} if alpha < 0.1 and dataset == "cifar10" else {}
    return practical(dataset, rounds=0) | {
        "algorithm": "local",
        "partition": {"name": "dirichlet", "alpha": alpha, **fewest},
    }


CELLS = [
    Cell(name, f"α={alpha:g}", settings(DATASETS[name], alpha))
    for name in ("CIFAR-10", "CIFAR-100")
    for alpha in ALPHAS
]


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw four maps for each data set."""
    from .figures import heat_maps

    figures = {}
    for name in ("CIFAR-10", "CIFAR-100"):
        columns = [cell.column for cell in CELLS if cell.row == name]
        runs = {column: run for column in columns if (run := findings.run(name, column))}
        shown = {f"${column}$".replace("α", r"\alpha"): run for column, run in runs.items()}
        if shown:
            figures[f"partitions-{DATASETS[name]}"] = heat_maps(shown)
    return figures
