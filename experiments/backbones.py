"""Clients with different frozen backbones: methods that exchange statistics of features, and methods that train heads.

Client i has backbone i mod 3. Seeds also draw the partition, because the statistics depend on nothing else. A row named
"alone" is its method with `control=solo`. The strengths λ, γ and the learning rate of every method were chosen by
validation on another seed (100) of Flowers-102 with 20 clients and α = 0.5, each from a grid of two to five values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .reproduction.cells import Cell, Column, Table, TableEntry
from .setting import cell

if TYPE_CHECKING:
    from .reproduction.findings import Findings

TITLE = "Clients with three different frozen backbones"
PARTITIONS = True

BACKBONES = {  # pictures of CIFAR-100 are small: enlarged to 96 pixels, in place of 128
    data: [f"frozen:efficientnet_lite{number}{side}+mlp" for number in range(3)]
    for data, side in (("Flowers-102", ""), ("CIFAR-100", "@96"))
}
DATA: dict[str, Any] = {"Flowers-102": "flowers102", "CIFAR-100": {"name": "cifar100", "samples": 15_000}}
SHARES = {  # clients and α
    "Flowers-102": [(20, 0.1), (20, 0.5), (20, 1.0), (100, 0.1), (100, 0.5)],
    "CIFAR-100": [(20, 0.1), (20, 0.5), (100, 0.1), (100, 0.5)],
}
STATISTICS: dict[str, dict[str, Any]] = {
    "AFL": {"algorithm": "afl"},
    "FedCGS": {"algorithm": "fedcgs"},
    "Choir": {"algorithm": "choir"},
    "Choir, alone": {"algorithm": "choir"},
}
TRAINED: dict[str, tuple[float, dict[str, Any]]] = {  # learning rate and method
    "Local": (0.3, {"algorithm": "local"}),
    "FedProto": (0.3, {"algorithm": "fedproto", "lam": 10.0}),
    "ProtoNorm": (0.3, {"algorithm": "protonorm", "lam": 10.0, "gamma": 100.0}),
    "FedTGP": (0.1, {"algorithm": "fedtgp", "lam": 10.0, "server_epochs": 10}),  # the server is most of its time
    "FedSA": (0.1, {"algorithm": "fedsa"}),
    "Fixed targets": (0.1, {"algorithm": "targets", "lam": 10.0}),
    "Duet": (0.3, {"algorithm": "duet"}),
    "Duet, alone": (0.3, {"algorithm": "duet"}),
}
ROWS = (*TRAINED, *STATISTICS)
COMMON = {"feature_dim": 512, "rounds": 15}

GRID = [
    (Column(f"{clients} clients, α = {alpha:g}", data), clients, alpha)
    for data, shares in SHARES.items()
    for clients, alpha in shares
]
COLUMNS = tuple(column for column, _, _ in GRID)


def _cells(column: Column, clients: int, alpha: float) -> list[Cell]:
    """Make the cells of a column."""
    settings = COMMON | {"dataset": DATA[column.group], "models": BACKBONES[column.group], "clients": clients}
    settings |= {"partition": {"name": "dirichlet", "alpha": alpha}}
    rows: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {row: ({}, method) for row, method in STATISTICS.items()}
    rows |= {row: ({"batch_size": 32, "lr": lr}, method) for row, (lr, method) in TRAINED.items()}
    return [
        cell(row, column, settings | training | {"control": "solo" if row.endswith("alone") else "none"}, **method)
        for row, (training, method) in rows.items()
    ]


CELLS = [made for place in GRID for made in _cells(*place)]

EXPLANATION = "Up and down together, of all rounds and clients, in megabytes (10⁶); first seed."

THIRDS = ("smallest third", "middle third", "largest third")
GAINS = (
    "Mean points over Choir, alone, of the same client, over all seeds with both; below, the median training samples."
)

CALIBRATION = (
    "Expected calibration error in points, mean over clients and seeds; empty for rules without probabilities."
)


def tables(findings: Findings) -> Sequence[Table]:
    """Show the accuracies, what clients gain by their size, and what was sent."""
    from .reproduction.accuracy import accuracy_tables

    columns = [column.place for column in findings.columns]
    rows = [(row, [_megabytes(findings, row, column) for column in columns]) for row in findings.rows]
    titles = {"columns": [one.name for one in findings.columns], "groups": [one.group for one in findings.columns]}
    sent = Table("What was sent", "Algorithm", rows=rows, explanation=EXPLANATION, **titles)
    gained = [_gains(findings, column) for column in columns]
    rows = [(name, [entries[part] for entries in gained]) for part, name in enumerate(THIRDS)]
    gains = Table("What clients gain by Choir", "Clients", rows=rows, explanation=GAINS, **titles)
    rows = [(row, [_calibration(findings, row, column) for column in columns]) for row in findings.rows]
    errors = Table("Calibration error", "Algorithm", rows=rows, explanation=CALIBRATION, **titles)
    return [*accuracy_tables(findings), *([gains] if "Choir" in findings.rows else []), errors, sent]


def _gains(findings: Findings, column: str) -> list[TableEntry]:
    """Compare each client's accuracy with that of the solo control, for the thirds of clients by training samples."""
    together, alone = (
        {run.info.experiment.seed: run for run in findings.finished(row, column)} for row in ("Choir", "Choir, alone")
    )
    gains: list[list[float]] = [[] for _ in THIRDS]
    sizes: list[list[int]] = [[] for _ in THIRDS]
    for seed in together.keys() & alone.keys():
        with_others, without = (
            run.by_client(run.chosen.record, run.info.headline) for run in (together[seed], alone[seed]) if run.chosen
        )
        samples = together[seed].population.train.sum(1)  # (M,)
        for part, ids in enumerate(np.array_split(np.argsort(samples, kind="stable"), len(THIRDS))):
            gains[part] += (100 * (with_others - without))[ids].tolist()
            sizes[part] += samples[ids].tolist()
    return [
        TableEntry(f"{np.nanmean(gain):+.1f}", f"{np.median(size):.0f} samples") if gain else TableEntry("")
        for gain, size in zip(gains, sizes, strict=True)
    ]


def _calibration(findings: Findings, row: str, column: str) -> TableEntry:
    """Average the calibration error over seeds, in the reported rounds under the headline rule."""
    records = [(run.info.headline, run.chosen.record) for run in findings.finished(row, column) if run.chosen]
    accuracies = [record.rules.get(rule) for rule, record in records]
    errors = [error for one in accuracies if (error := getattr(one, "calibration", None)) is not None]
    return TableEntry(f"{100 * float(np.mean(errors)):.1f}" if errors else "")


def _megabytes(findings: Findings, row: str, column: str) -> TableEntry:
    run = findings.run(row, column)
    sent = sum(record.bytes.up + record.bytes.down for record in run.rounds) if run and run.finished else None
    return TableEntry("" if sent is None else f"{sent / 1e6:,.1f}")
