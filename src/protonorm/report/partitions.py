"""Who holds what: heat maps of several ways to deal the same data out. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protonorm.history import Run
from protonorm.report.paper import COLUMN, label, paper_style


def heat_maps(runs: Mapping[str, Run]) -> Figure:
    """Draw samples by client and class, two maps across, each with its own colours."""
    down = -(-len(runs) // 2)
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.62 * down), layout="constrained")
        grid = figure.subplots(down, 2, squeeze=False)
        for number, (axes, (title, run)) in enumerate(zip(grid.flat, runs.items(), strict=False)):
            counts = np.array(run.about["counts"]["train"]) + np.array(run.about["counts"]["test"])  # (M, K)
            image = axes.imshow(counts, aspect="auto", cmap="Blues", origin="lower", interpolation="nearest")
            bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=5, length=1.5)
            axes.tick_params(labelsize=6)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            for side in ("top", "right"):
                axes.spines[side].set_visible(True)
            axes.set_title(label(number, title))
            if number % 2 == 0:
                axes.set_ylabel("client")
            if number >= len(runs) - 2:
                axes.set_xlabel("class")
        for axes in grid.flat[len(runs) :]:
            axes.set_axis_off()
        return figure
