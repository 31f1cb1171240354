"""What each part of ProtoNorm does on CIFAR-100: PA and PU, the solver, λ, γ, and whether anything is exchanged."""

from typing import Any

from .reproduction.cells import Column
from .setting import AUTHORS_ALIGNMENT, DATASETS, cell, practical

TITLE = "Parts of ProtoNorm: alignment, upscaling, λ, γ, exchange and first weights"

CORNER = "Variant"
COLUMNS = (Column("CIFAR-100", "Practical setting (α=0.1)"),)
PARTS: dict[str, dict[str, Any]] = {
    "PA and PU, as printed": {},
    "PA alone (γ = 1)": {"upscaling": False},
    "PU of unit prototypes, not aligned": {"alignment": "normalise"},
    "neither: means as they are": {"alignment": "none", "upscaling": False},
    "exact PA": {"alignment": "exact"},
    "PA stops as in the authors' program": {"schedule": AUTHORS_ALIGNMENT["schedule"]},
    "λ = 10": {"lam": 10.0},
    "exact PA, λ = 10": {"alignment": "exact", "lam": 10.0},
    "γ = 25": {"gamma": 25.0},
    "γ = 50": {"gamma": 50.0},
    "γ = 100": {"gamma": 100.0},
    "γ = 400": {"gamma": 400.0},
    "γ measured": {"gamma": "auto"},
    "prototypes measured before training": {"measured": "before"},
}
FIXED: dict[str, dict[str, Any]] = {
    "fixed targets, never exchanged": {"loss": "squared"},
    "fixed targets without negative numbers": {"loss": "squared", "targets": "blocks"},
    "fixed targets, λ = 10": {"loss": "squared", "lam": 10.0},
}
ALIKE = "clients with equal networks begin with equal weights"
ROWS = (*PARTS, *FIXED, ALIKE)

CELLS = [
    *(
        cell(row, COLUMNS[0], practical(DATASETS["CIFAR-100"]), algorithm, **fields)
        for algorithm, rows in (("protonorm", PARTS), ("targets", FIXED))
        for row, fields in rows.items()
    ),
    cell(ALIKE, COLUMNS[0], practical(DATASETS["CIFAR-100"], start="equal"), "protonorm"),
]
