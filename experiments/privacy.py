"""Accuracy against the privacy loss ε of one sample, δ = 1e-5, of 10 clients.

All clients have one frozen backbone, so that the noise of second moments is not spread over several. Choir and AFL send
their moments once; ProtoNorm trains its networks, so that its whole messages are clipped in each of its few rounds.
Local, fixed targets and a row named "alone" send nothing, which is ε = 0: they are equal in all columns.
"""

from __future__ import annotations

from typing import Any

from .reproduction.cells import Cell, Column
from .setting import cell

TITLE = "Accuracy against the privacy loss ε"
PARTITIONS = True

CLIENTS = 10
DATA: dict[str, dict[str, Any]] = {
    "Fashion": {"dataset": "fashion", "models": ["frozen:efficientnet_lite0@64+mlp"]},
    "Flowers-102": {"dataset": "flowers102", "models": ["frozen:efficientnet_lite0+mlp"]},
}
COMMON = {"clients": CLIENTS, "partition": {"name": "dirichlet", "alpha": 0.5}, "feature_dim": 512}
TRAINING = {"batch_size": 32, "lr": 0.1, "rounds": 15}
FEW = 5  # rounds of ProtoNorm: each costs privacy

CHOIR = {"algorithm": "choir", "public": False}
PROTONORM = {"algorithm": "protonorm", "lam": 10.0, "gamma": 100.0}
RELEASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # method, settings, protection
    f"ProtoNorm, {FEW} rounds": (PROTONORM, TRAINING | {"rounds": FEW}, {"bounds": "message"}),
    "Choir": (CHOIR, {"rounds": 2}, {}),
    "AFL": ({"algorithm": "afl"}, {"rounds": 1}, {}),
}
NOTHING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Local": ({"algorithm": "local"}, TRAINING),
    "Fixed targets": ({"algorithm": "targets"}, TRAINING),
    "Choir, alone": (CHOIR, {"rounds": 2, "control": "solo"}),
}
ROWS = (*NOTHING, *RELEASES)
BUDGETS = {"ε = 1": 1.0, "ε = 4": 4.0, "ε = 8": 8.0, "no noise": None}

GRID = [(Column(name, data), epsilon) for data in DATA for name, epsilon in BUDGETS.items()]
COLUMNS = tuple(column for column, _ in GRID)


def _cells(column: Column, epsilon: float | None) -> list[Cell]:
    """Make the cells of a column."""
    settings = COMMON | DATA[column.group]
    made = [cell(row, column, settings | more, **method) for row, (method, more) in NOTHING.items()]
    for row, (method, more, how) in RELEASES.items():
        protect = {"protect": {"name": "gaussian", "epsilon": epsilon, **how}} if epsilon else {}
        made.append(cell(row, column, settings | more | protect, **method))
    return made


CELLS = [made for place in GRID for made in _cells(*place)]
