"""Figures of a comparison, for slides and notebooks, drawn from the records of runs. Nothing here needs torch."""

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

from protonorm.report.drawing import label_text, write_figure
from protonorm.runs.reader import Run
from protonorm.runs.schema import RoundRecord

DPI = 200
METHOD = 60  # characters of a method's name in a legend
FEW_CLASSES = 20  # up to which their names fit beside a heat map

STYLE: Any = {  # of matplotlib's settings
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


def accuracy_curves(runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Draw each method's pooled accuracy over rounds under its headline rule, mean and spread over finished seeds.

    Rings are the rounds that are reported, chosen by validation where there is any: one for each seed, at its accuracy.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.9), layout="constrained")
        axes = figure.subplots()
        for method, found in runs.items():
            rule = found[0].info.headline
            done = [run for run in found if run.finished]
            curves = _table([_pooled(run, rule) for run in done])  # (seeds, R)
            if curves.size:
                colour = _draw_curve(axes, curves, f"{label_text(method, METHOD)} ({label_text(rule)})")
                points = [(run.chosen.record.round, _percent(run.chosen.record, rule)) for run in done if run.chosen]
                axes.plot(*np.reshape(points, (-1, 2)).T, "o", color=colour, mfc="none", ms=6, mew=1.2)
        level = next(iter(runs.values()))[0].majority
        if any(run.finished and run.chosen for found in runs.values() for run in found):
            axes.plot([], [], "o", color="0.3", mfc="none", ms=6, mew=1.2, label="reported round of a seed")
        if level:
            axes.axhline(100 * level.pooled, color="0.4", linestyle=":", linewidth=1.2, label="majority")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy, pooled (%)")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
        return figure


def heat_map(run: Run) -> Figure:
    """Draw how many samples of each class each client has."""
    counts = np.sum(run.population, axis=0)  # (M, K)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(counts.T, aspect="auto", cmap="viridis", origin="lower", interpolation="nearest")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("client")
        names = run.info.classes
        if len(names) <= FEW_CLASSES:
            axes.set_yticks(range(len(names)), [label_text(name) for name in names])
        else:
            axes.set_ylabel("class")
        figure.colorbar(image, ax=axes, label="samples")
        return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure; the ending of the name decides the format."""
    return write_figure(figure, path, DPI)


def _pooled(run: Run, rule: str) -> list[float]:
    """Give the pooled accuracy of each round in per cent; NaN where nobody was evaluated."""
    return [_percent(record, rule) for record in run.rounds]


def _percent(record: RoundRecord, rule: str) -> float:
    found = record.rules.get(rule)
    return 100 * found.pooled if found else np.nan


def _table(curves: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Put curves in rows; those that ended early have NaN at their ends."""
    table = np.full((len(curves), max(map(len, curves), default=0)), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[: len(curve)] = curve
    return table


def _draw_curve(axes: Axes, curves: NDArray[np.float64], label: str) -> Any:
    """Draw the rounds in which every seed was evaluated, and give the colour."""
    rounds = np.flatnonzero(~np.isnan(curves).any(0))
    mean = curves[:, rounds].mean(0)
    (line,) = axes.plot(rounds + 1, mean, label=label, linewidth=1.6)
    if len(curves) > 1:
        spread = curves[:, rounds].std(0, ddof=1)
        axes.fill_between(rounds + 1, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
    return line.get_color()
