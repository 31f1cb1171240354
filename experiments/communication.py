"""The supplement's table of communication: the printed formula, what our formula gives, and what messages really held.

All methods run with the same network, the 4-layer CNN, because FedNH and FedUV need one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .reproduction.cells import Cell, Table, TableEntry
from .setting import practical

if TYPE_CHECKING:
    from protonorm.runs.run import Run

    from .reproduction.findings import Findings

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
COLUMN, ROUND = "second round", 2  # in the first, servers of prototypes have nothing to send

CELLS = [
    Cell(name, COLUMN, practical("cifar100", models="cnn", rounds=ROUND) | {"algorithm": name.lower().replace("-", "")})
    for name in FORMULAS
]

EXPLANATION = (
    "Up and down together, over all clients, in the second round. Our formulas follow from what each method may send: "
    "they count batch norm's statistics, and what FedNH sends of its prototypes; FedKD's has r = 1, the most that it "
    "may send."
)


def tables(findings: Findings) -> Sequence[Table]:
    """Count what the second round sent, beside what our formula says that it sends."""
    asked = {name: text for name, text in FORMULAS.items() if findings.at(name, COLUMN)}
    rows = [(name, [TableEntry(text), *_counts(findings.run(name, COLUMN))]) for name, text in asked.items()]
    columns = ["printed formula", "numbers by our formula", "numbers measured", "bytes measured"]
    return [Table(TITLE, "Algorithm", columns, rows, explanation=EXPLANATION)]


def _counts(run: Run | None) -> list[TableEntry]:
    from experiments.reproduction.communication import run_floats  # slow to import

    if run is None or len(run.rounds) < ROUND:
        return [TableEntry("not run yet")] * 3
    formula, found = run_floats(run), run.rounds[ROUND - 1]
    return [TableEntry(f"{count.up + count.down:,}") for count in (formula, found.floats, found.bytes)]
