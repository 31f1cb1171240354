"""Figures of a comparison, for slides and notebooks, drawn from the records of runs. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from protonorm.report.drawing import label_text, write_figure
from protonorm.report.palette import line_style, marks_apart, ring_size
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

DPI = 200
METHOD = 60  # maximum characters of a method's name in a legend
FEW_CLASSES = 20  # maximum classes whose names fit beside a heat map
FEW_CLIENTS = 20  # likewise for clients
RING = 6  # size of a ring in points

STYLE: Any = {  # matplotlib settings
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


def accuracy_curves(runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Draw each method's pooled accuracy over rounds under its headline rule, mean and spread over finished seeds.

    Rings mark the reported round of each seed, chosen by validation where available. The legend gives the number of
    seeds and the meaning of the bands.
    """
    ended = {name: [run for run in found if run.finished] for name, found in runs.items()}
    drawn = {name: done for name, done in ended.items() if any(run.rounds for run in done)}
    rings: list[tuple[float, float]] = []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.7 + 0.1 * len(drawn)), layout="constrained")
        axes = figure.subplots()
        for method, done in drawn.items():
            rule, slot = done[0].info.headline, list(runs).index(method)
            curves = _table([_pooled(run, rule) for run in done])  # (seeds, R)
            seeds = f"{len(done)} seed{'s' if len(done) > 1 else ''}"
            _draw_curve(axes, curves, f"{label_text(method, METHOD)} ({label_text(rule)}, {seeds})", slot, len(drawn))
            points = [(run.chosen.record.round, _percent(run.chosen.record, rule)) for run in done if run.chosen]
            size, colour = ring_size(points, rings, RING), line_style(slot)["color"]
            axes.plot(*np.reshape(points, (-1, 2)).T, "o", color=colour, mfc="none", ms=size, mew=1.2)
            rings += points
        level = next(iter(runs.values()))[0].majority
        if any(run.chosen for done in drawn.values() for run in done):
            axes.plot([], [], "o", color="0.3", mfc="none", ms=RING, mew=1.2, label="reported round of a seed")
        if level:
            axes.axhline(100 * level.pooled, color="0.4", linestyle=":", linewidth=1.2, label="majority")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy, pooled (%)")
        handles: list[Any] = axes.get_legend_handles_labels()[0]
        if any(len(done) > 1 for done in drawn.values()):
            handles.append(Patch(color="0.3", alpha=0.2, linewidth=0, label="± a standard deviation over seeds"))
        if handles:
            axes.legend(
                handles=handles, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2
            )
        return figure


def heat_map(run: Run) -> Figure:
    """Draw the number of samples by client and class."""
    counts = np.sum(run.population, axis=0)  # (M, K)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(counts.T, aspect="auto", cmap="viridis", origin="lower", interpolation="nearest")
        clients = [run.client_name(id) for id in range(len(counts))]
        if clients != list(map(str, range(len(counts)))) and len(counts) <= FEW_CLIENTS:
            axes.set_xticks(range(len(counts)), [label_text(name) for name in clients], rotation=45, ha="right")
        else:
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
    """Write a figure; the suffix of the path determines the format."""
    return write_figure(figure, path, DPI)


def _pooled(run: Run, rule: str) -> list[float]:
    """Return the pooled accuracy of each round in per cent; NaN where no client was evaluated."""
    return [_percent(record, rule) for record in run.rounds]


def _percent(record: RoundRecord, rule: str) -> float:
    found = record.rules.get(rule)
    return 100 * found.pooled if found else np.nan


def _table(curves: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Stack curves in rows; shorter curves are padded with NaN."""
    table = np.full((len(curves), max(map(len, curves), default=0)), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[: len(curve)] = curve
    return table


def _draw_curve(axes: Axes, curves: NDArray[np.float64], label: str, slot: int, methods: int) -> None:
    """Draw the rounds in which every seed was evaluated; markers of different methods are staggered."""
    rounds = np.flatnonzero(~np.isnan(curves).any(0))
    mean, style = curves[:, rounds].mean(0), line_style(slot)
    marked = marks_apart(slot, len(rounds), methods)
    axes.plot(rounds + 1, mean, label=label, linewidth=1.6, markevery=marked, **style)
    if len(curves) > 1:
        spread = curves[:, rounds].std(0, ddof=1)
        axes.fill_between(rounds + 1, mean - spread, mean + spread, color=style["color"], alpha=0.2, linewidth=0)
