"""The supplement's figure: every client of the spiral experiment, with γ = 1 and γ = 10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .toy import client_star, toy_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .reproduction.findings import Findings

TITLE = "Local prototypes and learned representations of clients; in parentheses γ"

CELLS = [toy_cell("ProtoNorm", "non-IID", gamma=gamma) for gamma in (1.0, 10.0)]


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw the clients in turn, both values of γ beside each other."""
    from .figures import COLUMN, stars

    results = [result for cell in CELLS if (result := findings.result(cell.row, cell.column))]
    if len(results) < len(CELLS):
        return {}
    panels = [
        client_star(result, id, f"Client {id} ({gamma})")
        for id in range(results[0].experiment.clients)
        for gamma, result in zip((1, 10), results, strict=True)
    ]
    return {"spiral_clients": stars(panels, 4, COLUMN, lettered=False)}
