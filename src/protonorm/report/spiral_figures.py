"""Figures of the spiral experiment: its data, and prototypes and features in the plane as rays around the origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from protonorm.report.style import COLOURS, COLUMN, FULL, label, paper_style
from protonorm.runs.run import Run

MOST_FEATURES = 1500  # points of a panel: more only make the file larger
MOST_SAMPLES = 6000  # likewise, of the data

Vectors = NDArray[np.float64]  # (n, 2)
Classes = NDArray[np.int64]  # (n,)


@dataclass(frozen=True)
class Star:
    """One panel: rays from the origin to some prototypes, and points, both with their classes."""

    title: str
    rays: Vectors
    ray_classes: Classes
    points: Vectors
    point_classes: Classes
    dashed: bool = False  # for global prototypes; rays to local ones are drawn through
    small: bool = False  # the points are samples, many of them


def stars(panels: Sequence[Star], across: int, width: float = FULL, lettered: bool = True) -> Figure:
    """Draw stars beside each other, `across` of them in a row."""
    down = -(-len(panels) // across)
    with paper_style():
        figure = Figure(figsize=(width, width / across * 1.16 * down), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False).flat
        for number, axes in enumerate(grid):
            if number >= len(panels):
                axes.set_axis_off()
                continue
            panel = panels[number]
            _draw(axes, panel)
            title = label(number, panel.title) if lettered else panel.title
            axes.set_xlabel(title, fontsize=7, labelpad=2)
        return figure


def toy_data(points: NDArray[np.float32], labels: NDArray[np.int64], run: Run) -> Figure:
    """Draw the data's points (n, 2) by class, and each client's samples of each class."""
    counts = np.sum(run.population, axis=0)  # (M, K)
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.7), layout="constrained")
        left, right = figure.subplots(1, 2)
        chosen = _thinned(len(labels), MOST_SAMPLES)
        x, y = points[chosen].T
        left.scatter(x, y, s=0.7, c=_colours(labels[chosen]), linewidths=0, rasterized=True)
        left.set(aspect="equal", xticks=[], yticks=[])
        _frame(left)
        bottoms = np.cumsum(counts, axis=1) - counts  # (M, K): bars of a client stand on each other
        for number, colour in enumerate(_colours(np.arange(counts.shape[1]))):
            right.bar(range(len(counts)), counts[:, number], bottom=bottoms[:, number], width=0.8, color=colour)
        right.set_xticks(range(len(counts)))
        right.set_ylabel("samples")
        left.set_xlabel(label(0, "spiral data set"), labelpad=3)
        right.set_xlabel("client\n" + label(1, "clients' data"), labelpad=1)
        return figure


def _draw(axes: Axes, star: Star) -> None:
    style = (0, (3, 1.6)) if star.dashed else "-"
    for (x, y), colour in zip(star.rays, _colours(star.ray_classes), strict=True):
        axes.plot([0, x], [0, y], color=colour, zorder=2, linestyle=style, linewidth=1.2)
    chosen = _thinned(len(star.points), MOST_FEATURES)
    points, colours = star.points[chosen], _colours(star.point_classes[chosen])
    size, alpha = (1.6, 0.5) if star.small else (9.0, 0.85)
    x, y = points.T
    axes.scatter(x, y, s=size, c=colours, alpha=alpha, linewidths=0, zorder=3, rasterized=star.small)
    reach = 1.08 * max(_reach(star.rays), _reach(points, 99.5), 1e-9)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
    axes.axhline(0, color="0.88", linewidth=0.5, zorder=0)
    axes.axvline(0, color="0.88", linewidth=0.5, zorder=0)
    _frame(axes)
    axes.text(0.97, 0.03, f"±{reach:.2g}", transform=axes.transAxes, ha="right", va="bottom", fontsize=5, color="0.4")


def _frame(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def _thinned(size: int, most: int) -> NDArray[np.int64]:
    """Choose at most `most` of `size` positions, evenly spaced."""
    return np.linspace(0, size - 1, min(most, size)).astype(np.int64)


def _reach(vectors: Vectors, percentile: float = 100) -> float:
    return float(np.percentile(np.abs(vectors), percentile)) if vectors.size else 0.0


def _colours(classes: Classes) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in classes.tolist()]
