"""Accuracy over rounds beside a table: of all runs that have begun, so that partial ones are seen as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from protonorm.reproduction.findings import Findings
from protonorm.reproduction.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protonorm.runs.run import Run


def curves_name(study: Study) -> str:
    """Name the figure of a table's curves; what the names of a part's figures end with comes behind it."""
    return f"{study.name.removesuffix(study.ending)}-curves"


def draw_curves(findings: Findings) -> Mapping[str, Figure]:
    """Draw a panel for each column in which a run has begun, with the first such seed of each row; nothing if none has.

    Printed numbers are beside, where these are results.
    """
    from protonorm.report.paper_figures import accuracy_panels  # slow to import

    study = findings.study
    panels = {column.place: runs for column in findings.columns if (runs := _runs(findings, column.place))}
    printed: dict[str, dict[str, float]] = {}
    for (row, column), number in study.paper.items():
        if findings.profile.is_result and number.mean is not None and row in panels.get(column, {}):
            printed.setdefault(column, {})[row] = number.mean
    return {curves_name(study): accuracy_panels(panels, printed)} if panels else {}


def _runs(findings: Findings, column: str) -> dict[str, Run]:
    rows = (*findings.rows, *findings.study.beside)
    return {row: run for row in rows if (run := findings.run(row, column)) and run.rounds}
