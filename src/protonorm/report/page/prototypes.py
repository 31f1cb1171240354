"""How far the global prototypes are apart, over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protonorm.report.page.groups import Groups
from protonorm.report.page.lines import Line, chart, curve_of, with_range
from protonorm.report.page.words import listed

FAR = 20  # methods whose distances differ by this factor are drawn on a logarithmic axis


def prototype_charts(groups: Groups) -> list[dict[str, Any]]:
    """Draw distances as recorded, and margins as shares of the mean distance; none where no prototypes are."""
    apart = _lines(groups, _distances)
    if not apart:
        return []
    margins = _lines(groups, _margins)
    means = [value for line in apart for value in line["y"] if value]
    far = bool(means) and max(means) > FAR * min(means)
    return [
        chart("distances", "Pairwise distances", "distance", apart, _told(apart, "mean distance"), log=far, zero=True),
        chart(
            "margins", "Margins", "margin ÷ mean distance", margins, _told(margins, "mean relative margin"), zero=True
        ),
    ]


def _lines(groups: Groups, part: Any) -> list[Line]:
    lines = []
    for slot, (name, runs) in enumerate(groups.items()):
        curves = [curve_of(run.history, part) for run in runs]
        lines.append(with_range(name, slot, [curve for curve in curves if curve] or [{}]))
    return [line for line in lines if line["x"]]


def _distances(line: Mapping[str, Any]) -> tuple[float, ...] | None:
    found = line.get("prototypes")
    return tuple(found["distance"][name] for name in ("min", "mean", "max")) if found else None


def _margins(line: Mapping[str, Any]) -> tuple[float, ...] | None:
    found = line.get("prototypes")
    if not found or not found["distance"]["mean"]:
        return None
    shares = np.array(found["margins"]) / found["distance"]["mean"]
    return float(shares.min()), float(shares.mean()), float(shares.max())


def _told(lines: Sequence[Line], what: str) -> str:
    ends = [
        f"{line['name']} {line['y'][-1]:.3g} (from {line['low'][-1]:.3g} to {line['high'][-1]:.3g})" for line in lines
    ]
    return f"After the last recorded round, {what}: {listed(ends)}."
