"""The motivational example: two-dimensional features of spiral data, global and local prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .toy import client_star, server_star, toy_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.reproduction.findings import Findings

TITLE = "Spiral data set, its distribution, prototypes and learned representations"

CELLS = [
    toy_cell("FedProto", "IID"),
    toy_cell("FedProto", "non-IID"),
    toy_cell("ProtoNorm", "non-IID", gamma=1.0),
    toy_cell("ProtoNorm", "non-IID", gamma=10.0),
]
CLIENTS = (2, 5)  # shown of the last cell


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw the data and their distribution, and the six stars that can be drawn."""
    from protonorm.report.spiral_figures import stars, toy_data

    results = {cell.row: found for cell in CELLS if (found := findings.result(cell.row, cell.column))}
    panels = [server_star(found, row.replace(" (", "\n(", 1)) for row, found in results.items()]
    last = results.get(CELLS[-1].row)
    if last:
        panels += [client_star(last, id, f"Client {id} of ProtoNorm\n(non-IID, γ=10)") for id in CLIENTS]
    figures = {"spiral": stars(panels, 6)} if panels else {}
    uneven = results.get(CELLS[1].row)
    if uneven:
        data = uneven.experiment.dataset.load()
        figures["spiral-data"] = toy_data(data.inputs, data.labels, uneven.run)
    return figures
