"""Beside Table 1: methods that came after the paper, and methods whose clients exchange nothing.

A row named "alone" is its method with `control=solo`: every client federates with itself. What it has less than its
method is what the exchange brought; two networks or another loss a client could have had at home.
"""

from protonorm.reproduction.cells import Column

from .setting import DATASETS, cell, practical

TITLE = "Beside Table 1: newer methods, and controls without exchange"

PRACTICAL = "Practical setting (α=0.1)"
COLUMNS = tuple(Column(name, PRACTICAL) for name in ("CIFAR-10", "CIFAR-100", "Flowers-102"))
METHODS = {  # as shown: as we call them
    "Fixed targets, cosine": {"algorithm": "targets"},
    "Fixed targets, squared error": {"algorithm": "targets", "loss": "squared"},
    "FedORGP": {"algorithm": "fedorgp"},
    "FedSA": {"algorithm": "fedsa"},
    "FedMRL": {"algorithm": "fedmrl"},
    "Duet": {"algorithm": "duet"},
}
ALONE = {
    "ProtoNorm": {"algorithm": "protonorm"},
    "FML": {"algorithm": "fml"},
    "FedKD": {"algorithm": "fedkd"},
    "FedMRL": {"algorithm": "fedmrl"},
    "Duet": {"algorithm": "duet"},
}
ROWS = (*METHODS, *(f"{name}, alone" for name in ALONE))

CELLS = [
    cell(row, column, practical(DATASETS[column.name], control=control), **algorithm)
    for column in COLUMNS
    for control, rows in (("none", METHODS), ("solo", {f"{name}, alone": held for name, held in ALONE.items()}))
    for row, algorithm in rows.items()
]
