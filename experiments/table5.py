"""Table 5: other prototype methods with scaled targets, γ·c_j in place of c_j."""

from .reproduction.cells import Column, printed
from .setting import DATASETS, METHODS, cell, practical

TITLE = "Table 5: accuracy of other prototype methods by scaling factor"

COLUMNS = tuple(Column(name, "Scaling factor (γ)") for name in ("1.0", "1.1", "1.2", "1.3", "1.4"))
ROWS = tuple(f"{dataset}, {method}" for dataset in ("CIFAR-10", "CIFAR-100") for method in ("FedProto", "FedTGP"))
CORNER, BEST = "Dataset, algorithm", "row"

CELLS = [
    cell(row, column, practical(DATASETS[dataset]), METHODS[method], gamma=float(column.name))
    for row in ROWS
    for dataset, method in [row.split(", ")]
    for column in COLUMNS
]

PAPER = printed(
    COLUMNS,
    """
    CIFAR-10, FedProto  | 82.90 | 83.23 | 63.43 | 45.02 | -
    CIFAR-10, FedTGP    | 86.32 | 87.11 | 87.16 | 86.83 | -
    CIFAR-100, FedProto | 29.97 | 30.52 | 18.01 | - | -
    CIFAR-100, FedTGP   | 36.92 | 44.55 | 47.33 | 45.10 | 44.84
    """,
)

TOLERANCE = {"paper": 3.0}
