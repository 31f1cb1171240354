"""The spiral: its points, and who holds how many of them."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from protonorm.history import Run
from protonorm.report.paper import COLOURS, COLUMN, label, paper_style

MOST = 6000  # points: more only make the file larger


def toy_data(points: NDArray[np.float32], labels: NDArray[np.int64], run: Run) -> Figure:
    """Draw the points (n, 2) by class, and each client's samples of each class."""
    counts = np.array(run.about["counts"]["train"]) + np.array(run.about["counts"]["test"])  # (M, K)
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.7), layout="constrained")
        left, right = figure.subplots(1, 2)
        chosen = np.linspace(0, len(labels) - 1, min(MOST, len(labels))).astype(int)
        colours = [COLOURS[label % len(COLOURS)] for label in labels[chosen]]
        left.scatter(*points[chosen].T, s=0.7, c=colours, linewidths=0, rasterized=True)
        left.set(aspect="equal", xticks=[], yticks=[])
        for side in ("top", "right"):
            left.spines[side].set_visible(True)
        bottom = np.zeros(len(counts))
        for owner, column in enumerate(counts.T):
            right.bar(range(len(counts)), column, bottom=bottom, width=0.8, color=COLOURS[owner % len(COLOURS)])
            bottom += column
        right.set_xticks(range(len(counts)))
        right.set_ylabel("samples")
        left.set_xlabel(label(0, "spiral data set"), labelpad=3)
        right.set_xlabel("client\n" + label(1, "clients' data"), labelpad=1)
        return figure
