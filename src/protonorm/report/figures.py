"""Figures for papers and slides, drawn from the records of runs. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from protonorm.history import Run

DPI = 200
FEW = 20  # classes up to which their names fit beside a heat map

STYLE: Any = {  # of matplotlib's settings
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


def accuracy_curves(runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Draw each method's pooled accuracy over rounds under its headline rule, mean and spread over seeds."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.subplots()
        for method, found in runs.items():
            rule = found[0].about["headline"]
            curves = np.array([_curve(run, rule) for run in found if run.finished])  # (seeds, R)
            if curves.size:
                _draw_curve(axes, curves, f"{method} ({rule})")
        level = next(iter(runs.values()))[0].about["majority"]
        if level:
            axes.axhline(100 * level["pooled"], color="0.4", linestyle=":", linewidth=1.2, label="majority")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy, pooled (%)")
        axes.legend(frameon=False, fontsize=8)
        return figure


def heat_map(run: Run) -> Figure:
    """Draw how many samples of each class each client has."""
    counts = np.array(run.about["counts"]["train"]) + np.array(run.about["counts"]["test"])  # (M, K)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(counts.T, aspect="auto", cmap="viridis", origin="lower", interpolation="nearest")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("client")
        names = run.about["classes"]
        if len(names) <= FEW:
            axes.set_yticks(range(len(names)), names)
        else:
            axes.set_ylabel("class")
        figure.colorbar(image, ax=axes, label="samples")
        return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure; the ending of the name decides the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date in the file: equal figures are equal files.
    figure.savefig(path, dpi=DPI, metadata={"Software": None} if path.suffix == ".png" else {"CreationDate": None})
    return path


def _curve(run: Run, rule: str) -> list[float]:
    values = [line["rules"].get(rule) for line in run.history]
    return [np.nan if value is None else 100 * value["pooled"] for value in values]


def _draw_curve(axes: Axes, curves: NDArray[np.float64], label: str) -> None:
    rounds = np.arange(1, curves.shape[1] + 1)
    mean = curves.mean(0)
    (line,) = axes.plot(rounds, mean, label=label, linewidth=1.6)
    if len(curves) > 1:
        spread = curves.std(0, ddof=1)
        axes.fill_between(rounds, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
