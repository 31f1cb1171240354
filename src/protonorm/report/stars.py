"""Prototypes and features in the plane, as stars around the origin: the figures of the spiral experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from protonorm.report.paper import COLOURS, FULL, label, paper_style

MOST = 1500  # points a panel: more only make the file larger

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
    dashed: bool = False  # global prototypes; local ones are drawn through
    small: bool = False  # points are samples, many of them
    note: str = field(default="")


def stars(panels: Sequence[Star], across: int, width: float = FULL, lettered: bool = True) -> Figure:
    """Draw stars beside each other, so many across."""
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


def _draw(axes: Axes, star: Star) -> None:
    for vector, owner in zip(star.rays, star.ray_classes, strict=True):
        axes.plot([0, vector[0]], [0, vector[1]], color=_colour(owner), zorder=2,
                  linestyle=(0, (3, 1.6)) if star.dashed else "-", linewidth=1.2)  # fmt: skip
    chosen = np.linspace(0, len(star.points) - 1, min(MOST, len(star.points))).astype(int)
    points, owners = star.points[chosen], star.point_classes[chosen]
    size, alpha = (1.6, 0.5) if star.small else (9.0, 0.85)
    axes.scatter(points[:, 0], points[:, 1], s=size, c=[_colour(owner) for owner in owners], alpha=alpha,
                 linewidths=0, zorder=3, rasterized=star.small)  # fmt: skip
    reach = 1.08 * max(_reach(star.rays), _reach(points, 99.5), 1e-9)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
    axes.axhline(0, color="0.88", linewidth=0.5, zorder=0)
    axes.axvline(0, color="0.88", linewidth=0.5, zorder=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    axes.text(0.97, 0.03, f"±{reach:.2g}", transform=axes.transAxes, ha="right", va="bottom", fontsize=5, color="0.4")


def _reach(vectors: Vectors, share: float = 100) -> float:
    return float(np.percentile(np.abs(vectors), share)) if vectors.size else 0.0


def _colour(owner: int) -> str:
    return COLOURS[int(owner) % len(COLOURS)]
