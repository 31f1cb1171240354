"""Beside Table 1: methods that came after the paper, λ = 10, and methods whose clients exchange nothing.

A row named "alone" is its method with `control=solo`: every client federates with itself. What it has less than its
method is what the exchange brought; two networks or another loss a client could have had at home. λ = 10 is what the
authors' program has for its prototype methods, where the paper prints λ = 1.
"""

from typing import Any

from .reproduction.cells import Cell, Column
from .setting import DATASETS, cell, pathological, practical
from .table1 import COLUMNS, PATHOLOGICAL

TITLE = "Beside Table 1: λ = 10, newer methods, and controls without exchange"

METHODS: dict[str, dict[str, Any]] = {  # as shown: as we call them
    "ProtoNorm, λ = 10": {"algorithm": "protonorm", "lam": 10.0},
    "FedProto, λ = 10": {"algorithm": "fedproto", "lam": 10.0},
    "FedTGP, λ = 10": {"algorithm": "fedtgp", "lam": 10.0},
    "Fixed targets, squared error, λ = 10": {"algorithm": "targets", "loss": "squared", "lam": 10.0},
    "Fixed targets, cosine": {"algorithm": "targets"},
    "Fixed targets, squared error": {"algorithm": "targets", "loss": "squared"},
    "FedORGP": {"algorithm": "fedorgp"},
    "FedSA": {"algorithm": "fedsa"},
    "FedMRL": {"algorithm": "fedmrl"},
    "Duet": {"algorithm": "duet"},
}
ALONE: dict[str, dict[str, Any]] = {
    "ProtoNorm": {"algorithm": "protonorm"},
    "ProtoNorm, λ = 10": {"algorithm": "protonorm", "lam": 10.0},
    "FML": {"algorithm": "fml"},
    "FedKD": {"algorithm": "fedkd"},
    "FedMRL": {"algorithm": "fedmrl"},
    "Duet": {"algorithm": "duet"},
}
ROWS = (*METHODS, *(f"{name}, alone" for name in ALONE))


def _cells(column: Column, control: str, rows: dict[str, dict[str, Any]]) -> list[Cell]:
    setting = pathological if column.group == PATHOLOGICAL else practical
    return [cell(row, column, setting(DATASETS[column.name]) | {"control": control}, **rows[row]) for row in rows]


CELLS = [
    made
    for column in COLUMNS
    for control, rows in (("none", METHODS), ("solo", {f"{name}, alone": given for name, given in ALONE.items()}))
    for made in _cells(column, control, rows)
]
