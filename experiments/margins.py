"""The figure of margins: how evenly the global prototypes of three methods are spread.

The paper does not name the data set of its figure; both CIFAR sets are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .reproduction.cells import Column
from .setting import DATASETS, METHODS, cell, practical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .reproduction.findings import Findings

TITLE = "Comparison of normalized global prototype margins"

SHOWN = ("FedProto", "FedTGP", "ProtoNorm")
PANELS = ("CIFAR-10", "CIFAR-100")

CELLS = [cell(row, Column(name), practical(DATASETS[name]), METHODS[row]) for name in PANELS for row in SHOWN]


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw the margins of the last round."""
    from .figures import margin_panels

    panels = {name: {row: run for row in SHOWN if (run := findings.run(row, name))} for name in PANELS}
    panels = {name: runs for name, runs in panels.items() if runs}
    return {"margins": margin_panels(panels)} if panels else {}
