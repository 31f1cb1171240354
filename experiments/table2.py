"""Table 2: CIFAR-100 under other heterogeneity, other widths of the decision layer, and more clients."""

from .reproduction.cells import Column, printed
from .reproduction.profiles import Settings
from .setting import METHODS, cell, practical

TITLE = "Table 2: accuracy on CIFAR-100 by heterogeneity, decision layer and number of clients"

ALPHA, WIDTH, CLIENTS = "Data heterogeneity (α)", "Decision layer dim. (d)", "Number of clients (M)"
COLUMNS = (
    *(Column(name, ALPHA) for name in ("0.01", "0.5", "1.0")),
    *(Column(name, WIDTH) for name in ("64", "1024")),
    *(Column(name, CLIENTS) for name in ("50", "100")),
)
ROWS = tuple(METHODS)
BESIDE = ("Local",)


def settings(column: Column) -> Settings:
    """Change the one thing that a column changes."""
    if column.group == ALPHA:
        return practical("cifar100", alpha=float(column.name))
    return practical("cifar100", **{"feature_dim" if column.group == WIDTH else "clients": int(column.name)})


CELLS = [
    cell(row, column, settings(column), algorithm)
    for column in COLUMNS
    for row, algorithm in (METHODS | {"Local": "local"}).items()
]

PAPER = printed(
    COLUMNS,
    """
    LG-FedAvg  | 66.75 ± 0.36 | 20.87 ± 0.18 | 15.84 ± 0.27 | 37.47 ± 0.17 | 39.50 ± 0.08 | 37.47 ± 0.19 | 35.28 ± 0.52
    FML        | 64.29 ± 0.19 | 20.66 ± 0.20 | 15.58 ± 0.19 | 35.36 ± 0.19 | 39.06 ± 0.45 | 37.61 ± 0.12 | 35.69 ± 0.11
    FedKD      | 66.08 ± 0.24 | 20.94 ± 0.21 | 16.01 ± 0.20 | 37.17 ± 0.40 | 40.06 ± 0.42 | 38.39 ± 0.15 | 35.85 ± 0.15
    FedDistill | 60.11 ± 0.21 | 22.28 ± 0.12 | 17.39 ± 0.39 | 37.08 ± 0.12 | 38.78 ± 1.11 | 40.70 ± 0.40 | 39.02 ± 0.04
    FedProto   | 58.98 ± 0.31 | 12.88 ± 0.36 | 10.54 ± 0.24 | 25.86 ± 0.19 | 28.41 ± 0.11 | 29.36 ± 0.57 | 23.98 ± 0.34
    FedTGP     | 64.02 ± 0.34 | 16.62 ± 0.28 | 11.97 ± 0.33 | 31.26 ± 0.69 | 37.24 ± 0.02 | 36.69 ± 0.15 | 35.22 ± 0.19
    ProtoNorm  | 73.37 ± 0.23 | 27.28 ± 0.07 | 21.37 ± 0.08 | 46.95 ± 0.44 | 47.32 ± 0.15 | 43.98 ± 0.27 | 41.06 ± 0.17
    """,
)

TOLERANCE = {"paper": 3.0}
LEADS, SLACK = "ProtoNorm", {"paper": 0.5, "cpu": 1.0}
