"""How far the global prototypes are apart, over rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from protonorm.report.page.curves import Line, by_round, chart, with_range
from protonorm.report.page.groups import Groups
from protonorm.report.page.text import listed
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

FAR = 20  # methods whose distances differ by this factor are drawn on a logarithmic axis

Range = tuple[float, float, float]  # smallest, mean, largest


def prototype_charts(groups: Groups) -> list[dict[str, Any]]:
    """Draw distances as recorded, and margins as shares of the mean distance; none where no prototypes are."""
    distances = _lines(groups, _distances)
    if not distances:
        return []
    margins = _lines(groups, _margins)
    means = [value for line in distances for value in line["y"] if value]
    far = bool(means) and max(means) > FAR * min(means)
    told = _conclusion(distances, "mean distance"), _conclusion(margins, "mean relative margin")
    return [
        chart("distances", "Pairwise distances", "distance", distances, told[0], log=far, zero=True),
        chart("margins", "Margins", "margin ÷ mean distance", margins, told[1], zero=True),
    ]


def _lines(groups: Groups, part: Callable[[Run, RoundRecord], Range | None]) -> list[Line]:
    lines = []
    for slot, (name, runs) in enumerate(groups.items()):
        curves = [_curve(run, part) for run in runs]
        lines.append(with_range(name, slot, [curve for curve in curves if curve] or [{}]))
    return [line for line in lines if line["x"]]


def _curve(run: Run, part: Callable[[Run, RoundRecord], Range | None]) -> dict[int, Range]:
    return by_round(run, lambda record: part(run, record))


def _distances(_: Run, record: RoundRecord) -> Range | None:
    found = record.prototypes
    return (found.min, found.mean, found.max) if found else None


def _margins(run: Run, record: RoundRecord) -> Range | None:
    found = run.margins(record)
    if found is None or record.prototypes is None or not record.prototypes.mean:
        return None
    shares = found[1] / record.prototypes.mean  # (K',)
    return float(shares.min()), float(shares.mean()), float(shares.max())


def _conclusion(lines: Sequence[Line], what: str) -> str:
    ends = [
        f"{line['name']} {line['y'][-1]:.3g} (from {line['low'][-1]:.3g} to {line['high'][-1]:.3g})" for line in lines
    ]
    return f"After the last recorded round, {what}: {listed(ends)}."
