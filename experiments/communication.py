"""The supplement's table of communication: the paper's formula, its value, and what the messages really held.

All methods run with the same network, the 4-layer CNN, because FedNH and FedUV need one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protonorm.reproduction.cells import Cell
from protonorm.reproduction.table import Entry, Table

from .setting import practical

if TYPE_CHECKING:
    from protonorm.reproduction.findings import Findings

TITLE = "Per-round communication cost, formulas and measured messages"

ALL = "Σ |w_i|·2"
PROTOTYPES = "Σ (K_i + K)·d"
FORMULAS = {  # as printed
    "FedNH": ALL,
    "FedUV": ALL,
    "LG-FedAvg": "Σ |φ_i|·2",
    "FML": "M·(|θ_aux| + |φ_aux|)·2",
    "FedKD": "M·(|θ_aux| + |φ_aux|)·2·r",
    "FedDistill": "Σ (K_i + K)·K",
    "FedProto": PROTOTYPES,
    "FedTGP": PROTOTYPES,
    "ProtoNorm": PROTOTYPES,
}
COLUMN = "second round"

CELLS = [
    Cell(name, COLUMN, practical("cifar100", models="cnn", rounds=2) | {"algorithm": name.lower().replace("-", "")})
    for name in FORMULAS
]


def tables(findings: Findings) -> Sequence[Table]:
    """Count what the second round sent, and what our formula says that it sends."""
    from protonorm.communication import FORMULAS as OURS
    from protonorm.communication import sizes_of

    rows = []
    for name, text in FORMULAS.items():
        run, dashes = findings.run(name, COLUMN), ["not run yet"] * 3
        if run and run.finished:
            last, formula, found = run.history[-1], OURS[name.lower().replace("-", "")], sizes_of(run)
            floats, octets = sum(last["floats"].values()), sum(last["bytes"].values())
            dashes = [f"{number:,}" for number in (formula.up(found) + formula.down(found), floats, octets)]
        rows.append((name, [Entry(text), *map(Entry, dashes)]))
    columns = ["printed formula", "numbers by our formula", "numbers measured", "bytes measured"]
    explanation = (
        "Up and down together, over all clients, in the second round. Our formulas count batch norm's statistics, and "
        "what FedNH sends of its prototypes; FedKD's stands at r = 1."
    )
    return [Table(TITLE, "Algorithm", columns, rows, explanation=explanation)]
