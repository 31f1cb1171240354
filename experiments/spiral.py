"""The motivational example: two-dimensional features of spiral data, global and local prototypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from protonorm.runs.layout import SERVER, exists

from .reproduction.cells import Table, TableEntry
from .toy import angles, client_star, server_star, toy_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .reproduction.findings import Findings

TITLE = "Spiral data set, its distribution, prototypes and learned representations"

PANELS, OWN = (
    [
        toy_cell("FedProto", "IID", start),
        toy_cell("FedProto", "non-IID", start),
        toy_cell("ProtoNorm", "non-IID", start, gamma=1.0),
        toy_cell("ProtoNorm", "non-IID", start, gamma=10.0),
    ]
    for start in ("equal", "own")
)
CELLS = [*PANELS, *OWN]  # the latter in numbers alone
CLIENTS = (2, 5)  # shown of the last panel
COLUMNS_OF_NUMBERS = ("smallest angle of neighbours", "local to global", "nearest global", "nearest local", "logits")
EXPLANATION = (
    "After the last round, of the first seed. Smallest angle of neighbours: between global prototypes; six even ones "
    "have 60°. Local to global: median angle between a local prototype and the global one of its class. Both are known "
    "where the trained clients are. Then test accuracy in per cent, pooled over clients, under three rules."
)


def tables(findings: Findings) -> Sequence[Table]:
    """Write what the panels show as tables."""
    rows = [(row, [TableEntry(text) for text in _numbers(findings, row, column)]) for row, column in findings.places]
    return [Table(TITLE, "Panel", COLUMNS_OF_NUMBERS, rows, explanation=EXPLANATION)]


def _numbers(findings: Findings, row: str, column: str) -> list[str]:
    first, result = findings.at(row, column)[0], findings.result(row, column)
    if first.state != "finished" or result is None:
        return ["not run yet"] * len(COLUMNS_OF_NUMBERS)
    rules = result.run.rounds[-1].rules
    accuracies = [
        100 * accuracy.pooled if (accuracy := rules.get(rule)) else None
        for rule in ("nearest-global", "nearest-local", "logits")
    ]
    has_clients = exists(result.run.folder / SERVER)  # an archived record may be without
    degrees = [f"{angle:.0f}°" for angle in angles(server_star(result, ""))] if has_clients else ["-", "-"]
    return degrees + ["-" if number is None else f"{number:.1f}" for number in accuracies]


def draw(findings: Findings) -> Mapping[str, Figure]:
    """Draw the data and their distribution, and the six stars that can be drawn."""
    from .figures import stars, toy_data

    results = {cell.row: result for cell in PANELS if (result := findings.result(cell.row, cell.column))}
    panels = [server_star(result, row.replace(" (", "\n(", 1)) for row, result in results.items()]
    last = results.get(PANELS[-1].row)
    if last:
        panels += [client_star(last, id, f"Client {id} of ProtoNorm\n(non-IID, γ=10)") for id in CLIENTS]
    figures = {"spiral": stars(panels, 6)} if panels else {}
    uneven = results.get(PANELS[1].row)
    if uneven:
        data = uneven.experiment.dataset.load()
        figures["spiral-data"] = toy_data(data.inputs, data.labels, uneven.run)
    return figures
