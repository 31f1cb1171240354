"""The measures beside accuracy, in the round that is reported: a table on the page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from protonorm.analysis.comparison import Row
from protonorm.analysis.statistics import mean_interval, share_a_seed
from protonorm.report.page.groups import Groups
from protonorm.runs.run import Run

MEASURES = {  # name in the record: (title, what it is, whether it is a share, which is shown in per cent)
    "p10": ("p10", "the accuracy that a tenth of the clients does not reach", True),
    "balanced": ("balanced", "mean over clients of the mean recall of their classes", True),
    "f1": ("macro-F1", "mean over clients of the mean F1 of classes", True),
    "log_loss": ("log loss", "mean over samples of −log p of the true class, in nats; lower is better", False),
    "calibration": (
        "calibration error",
        "how far confidence and accuracy are apart, in 15 bins; lower is better",
        True,
    ),
}


def measures(groups: Groups, table: Sequence[Row]) -> dict[str, Any]:
    """Lay out the measures, a row for each method and rule; no rows if none was taken."""
    found = [_row(row, groups[row.method]) for row in table if row.method in groups]
    known = any(text != "–" for row in found for text in row["cells"])
    return {
        "titles": [title for title, _, _ in MEASURES.values()],
        "meanings": [(title, what) for title, what, _ in MEASURES.values()],
        "dashes": any("–" in row["cells"] for row in found),
        "rows": [one | {"continued": _continues(table, place)} for place, one in enumerate(found)] if known else [],
    }


def _row(row: Row, runs: Sequence[Run]) -> dict[str, Any]:
    found = [run.chosen.record.rules.get(row.rule) for run in runs if run.chosen]
    repeated = share_a_seed([run.info.experiment.seed for run in runs])
    cells = [
        _cell([getattr(one, name) for one in found if one], share=share, repeated=repeated)
        for name, (_, _, share) in MEASURES.items()
    ]
    return {"method": row.method, "rule": row.rule, "headline": row.headline, "cells": cells}


def _cell(values: Sequence[float | None], *, share: bool, repeated: bool) -> str:
    """Write the mean over seeds, with half its 95 % interval; a dash where the rule has no such measure.

    Runs that share a seed are not independent, and have no interval.
    """
    scale, digits = (100, 2) if share else (1, 3)
    known = [scale * value for value in values if value is not None]
    if not known:
        return "–"
    interval = None if repeated else mean_interval(known)
    return f"{fmean(known):.{digits}f}" + (f" ± {interval.half:.{digits}f}" if interval else "")


def _continues(table: Sequence[Row], place: int) -> bool:
    return place > 0 and table[place - 1].method == table[place].method
