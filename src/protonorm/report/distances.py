"""How far prototypes are apart while they are aligned for the first time. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from safetensors.numpy import load_file

from protonorm.history import Run
from protonorm.report.paper import COLOURS, COLUMN, label, paper_style

ORTHOGONAL = float(np.sqrt(2))  # what the paper expects


def first_distances(run: Run) -> NDArray[np.float64] | None:
    """Read all pairwise distances along the first alignment, (steps + 1, K(K−1)/2); None if it was not aligned."""
    path = run.folder / "figures.safetensors"
    found = load_file(path).get("alignment.distances") if path.exists() else None
    return None if found is None else found.astype(np.float64)


def distance_curves(runs: Mapping[str, Run]) -> Figure:
    """Draw least, mean and greatest distance after each step, a panel for each run."""
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.85), layout="constrained")
        grid = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
        for number, (axes, (title, run)) in enumerate(zip(grid, runs.items(), strict=True)):
            found = first_distances(run)
            if found is not None and found.size:
                steps = np.arange(len(found))
                axes.fill_between(steps, found.min(1), found.max(1), color=COLOURS[5], alpha=0.25, linewidth=0)
                axes.plot(steps, found.max(1), "--", color=COLOURS[4], label="max")
                axes.plot(steps, found.mean(1), "-", color=COLOURS[0], label="mean")
                axes.plot(steps, found.min(1), "-.", color=COLOURS[2], label="min")
            axes.axhline(ORTHOGONAL, color="0.3", linestyle=":", linewidth=0.9, label="$\\sqrt{2}$")
            axes.set_xlabel("PA iteration")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_ylim(bottom=0)
            axes.set_title(label(number, title))
        grid[0].set_ylabel("pairwise distance")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, handlelength=2.0)
        return figure
