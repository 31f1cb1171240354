"""The paper's settings, which its tables and figures share (its section 5.1)."""

from __future__ import annotations

from typing import Any

from .reproduction.cells import Cell, Column
from .reproduction.profiles import Settings

METHODS = {  # as printed: as we call them, in the order of tables 1 and 2
    "LG-FedAvg": "lgfedavg",
    "FML": "fml",
    "FedKD": "fedkd",
    "FedDistill": "feddistill",
    "FedProto": "fedproto",
    "FedTGP": "fedtgp",
    "ProtoNorm": "protonorm",
}
DATASETS = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "Flowers-102": "flowers102",
    "Tiny ImageNet": "tinyimagenet",
}
# of the pathological setting; the paper gives no numbers: 2 is that of its authors' program, the others are PFLlib's
CLASSES_PER_CLIENT = {"cifar10": 2, "cifar100": 10, "tinyimagenet": 20}

AUTHORS_ALIGNMENT = {  # for figures of its steps: the authors' program compares mean forces rounded to four decimals
    "name": "protonorm",
    "alignment": "paper",
    "schedule": {"stop": "rounding", "epsilon": 1e-4},
}

COMMON: dict[str, Any] = {
    "models": "paper",
    "feature_dim": 512,
    "clients": 20,
    "rounds": 300,
    "epochs": 1,
    "batch_size": 32,
    "lr": 0.01,
}


def practical(dataset: str, alpha: float = 0.1, **extra: Any) -> dict[str, Any]:
    """Assign a data set to the clients in Dirichlet shares: the practical setting."""
    return COMMON | {"dataset": dataset, "partition": {"name": "dirichlet", "alpha": alpha}} | extra


def pathological(dataset: str) -> dict[str, Any]:
    """Assign a few classes only to each client: the pathological setting."""
    partition = {"name": "pathological", "classes_per_client": CLASSES_PER_CLIENT[dataset]}
    return COMMON | {"dataset": dataset, "partition": partition}


def cell(row: str, column: Column, settings: Settings, algorithm: str, **fields: Any) -> Cell:
    """Make the cell of a method in a setting."""
    return Cell(row, column.place, {**settings, "algorithm": {"name": algorithm, **fields}})
