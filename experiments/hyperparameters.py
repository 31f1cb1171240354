"""The supplement's table of hyper-parameters: what the paper prints, and our defaults. Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .reproduction.cells import Table, TableEntry

if TYPE_CHECKING:
    from .reproduction.findings import Findings

TITLE = "Hyperparameter settings for the compared methods"

PRINTED = (  # method, symbol and meaning, value as printed, our algorithm and setting
    ("FML", "α (KD weight for local model)", 0.5, "fml", "alpha"),
    ("FML", "β (KD weight for meme model)", 0.5, "fml", "beta"),
    ("FedKD", "T start (energy threshold)", 0.95, "fedkd", "t_start"),
    ("FedKD", "T end (energy threshold)", 0.98, "fedkd", "t_end"),
    ("FedDistill", "γ (weight of logit regularizer)", 1.0, "feddistill", "lam"),
    ("FedNH", "ρ (smoothing parameter)", 0.9, "fednh", "rho"),
    ("FedUV", "μ (classifier variance regularizer)", 2.5, "feduv", "mu"),
    ("FedUV", "λ (Hyperspherical uniformity regularizer)", 0.5, "feduv", "lam"),
)


def tables(findings: Findings) -> Sequence[Table]:
    """Write a table of our defaults beside the printed values."""
    from protonorm.algorithms import ALGORITHMS

    rows = []
    for method, meaning, value, algorithm, setting in PRINTED:
        default = getattr(ALGORITHMS[algorithm].load()(), setting)
        texts = (meaning, f"{value:g}", f"{default:g}", f"{algorithm}.{setting}")
        rows.append((method, [TableEntry(text) for text in texts]))
    columns = ["hyper-parameter", "printed", "our default", "setting"]
    return [Table(TITLE, "Method", columns, rows, explanation="Symbols are those of each method's own paper.")]
