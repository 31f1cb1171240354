"""How evenly global prototypes are apart: each class's margin over the largest. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from protonorm.history import Run
from protonorm.report.paper import COLOURS, COLUMN, label, paper_style

FEW = 20  # classes up to which bars can be told apart


def normalised_margins(run: Run) -> NDArray[np.float64] | None:
    """Divide the last round's margins (K,) by the largest; None before there are prototypes."""
    shapes = [line["prototypes"]["margins"] for line in run.history if "prototypes" in line]
    if not shapes or not (apart := np.array(shapes[-1])).any():
        return None
    return np.asarray(apart / apart.max())


def margin_panels(panels: Mapping[str, Mapping[str, Run]]) -> Figure:
    """Draw a panel for each data set: bars for few classes, sorted curves for many."""
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.55 * len(panels) + 0.25), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for number, (axes, (title, runs)) in enumerate(zip(grid, panels.items(), strict=True)):
            found = {name: values for name, run in runs.items() if (values := normalised_margins(run)) is not None}
            classes = max(map(len, found.values()), default=0)
            (_bars if classes <= FEW else _curves)(axes, found)
            axes.set_ylim(0, 1.05)
            axes.set_ylabel("normalised margin")
            axes.set_title(label(number, title) if len(panels) > 1 else "")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def _bars(axes: Axes, found: Mapping[str, NDArray[np.float64]]) -> None:
    width = 0.8 / max(len(found), 1)
    for number, (name, values) in enumerate(found.items()):
        places = np.arange(len(values)) + (number - (len(found) - 1) / 2) * width
        axes.bar(places, values, width * 0.92, color=COLOURS[number], label=name)
    axes.set_xticks(range(max(map(len, found.values()), default=0)))
    axes.set_xlabel("class")


def _curves(axes: Axes, found: Mapping[str, NDArray[np.float64]]) -> None:
    for number, (name, values) in enumerate(found.items()):
        axes.plot(np.sort(values), color=COLOURS[number], label=name, marker=".", markersize=2, linewidth=0.6)
    axes.set_xlabel("classes, sorted by margin")
