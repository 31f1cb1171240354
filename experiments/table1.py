"""Table 1: heterogeneous networks on four data sets, assigned to the clients in two ways."""

from .reproduction.cells import Column, printed
from .setting import DATASETS, METHODS, cell, pathological, practical

TITLE = "Table 1: accuracy on four data sets with heterogeneous models"

PATHOLOGICAL, PRACTICAL = "Pathological setting", "Practical setting (α=0.1)"
COLUMNS = (
    *(Column(name, PATHOLOGICAL) for name in ("CIFAR-10", "CIFAR-100", "Tiny ImageNet")),
    *(Column(name, PRACTICAL) for name in ("CIFAR-10", "CIFAR-100", "Flowers-102", "Tiny ImageNet")),
)
ROWS = tuple(METHODS)
BESIDE = ("Local",)

CELLS = [
    cell(row, column, (pathological if column.group == PATHOLOGICAL else practical)(DATASETS[column.name]), algorithm)
    for column in COLUMNS
    for row, algorithm in (METHODS | {"Local": "local"}).items()
]

PAPER = printed(
    COLUMNS,
    """
    LG-FedAvg  | 85.49 ± 0.05 | 53.51 ± 0.08 | 28.34 ± 0.08 | 86.97 ± 0.14 | 38.54 ± 0.21 | 43.88 ± 0.17 | 22.30 ± 0.37
    FML        | 83.58 ± 0.06 | 51.76 ± 0.09 | 28.15 ± 0.09 | 86.59 ± 0.15 | 37.83 ± 0.03 | 40.39 ± 0.17 | 22.03 ± 0.12
    FedKD      | 85.57 ± 0.05 | 53.12 ± 0.08 | 28.99 ± 0.07 | 87.10 ± 0.02 | 39.74 ± 0.42 | 42.06 ± 0.17 | 23.08 ± 0.17
    FedDistill | 85.53 ± 0.05 | 56.31 ± 0.07 | 30.40 ± 0.02 | 86.93 ± 0.12 | 39.52 ± 0.33 | 49.28 ± 0.12 | 22.98 ± 0.15
    FedProto   | 80.55 ± 0.05 | 50.03 ± 0.09 | 25.20 ± 0.03 | 82.90 ± 0.46 | 29.97 ± 0.18 | 29.77 ± 0.15 | 13.30 ± 0.06
    FedTGP     | 85.46 ± 0.05 | 50.57 ± 0.08 | 25.88 ± 0.04 | 86.32 ± 0.49 | 36.92 ± 0.16 | 43.95 ± 0.17 | 19.44 ± 0.12
    ProtoNorm  | 88.40 ± 0.16 | 64.18 ± 0.05 | 38.75 ± 0.26 | 88.56 ± 0.11 | 47.41 ± 0.40 | 53.83 ± 0.38 | 31.20 ± 0.38
    """,
)

TOLERANCE = {"paper": 3.0}
LEADS, SLACK = "ProtoNorm", {"paper": 0.5, "cpu": 1.0}
