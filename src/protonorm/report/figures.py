"""Figures of a comparison, for slides and notebooks, drawn from the records of runs. Does not import torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from protonorm.analysis.comparison import display_names
from protonorm.analysis.statistics import Numbers, padded, spread
from protonorm.core.text import counted
from protonorm.report.drawing import label_text, line_style, marks_apart, ring_size, slots
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

METHOD = 60  # maximum characters of a method's name in a legend
FEW_CLASSES = 20  # maximum classes whose names fit beside a heat map
FEW_CLIENTS = 20  # likewise for clients
RING = 6  # size of a ring in points
BAND = "95 % interval of the mean; range of two seeds"  # as in tables

STYLE: Any = {  # matplotlib settings
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


def accuracy_curves(runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Draw each method's pooled accuracy over rounds under its headline rule, mean and band over finished seeds.

    Rings mark the reported round of each seed, chosen by validation where available. The legend gives the number of
    seeds and the meaning of the bands.
    """
    ended = {name: [run for run in seeds if run.finished] for name, seeds in runs.items()}
    drawn = {name: done for name, done in ended.items() if any(run.rounds for run in done)}
    names, styles = display_names(list(runs)), slots({name: seeds[0] for name, seeds in runs.items()})
    rings: list[tuple[float, float]] = []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.7 + 0.1 * len(drawn)), layout="constrained")
        axes = figure.subplots()
        for method, done in drawn.items():
            rule, slot = done[0].info.headline, styles[method]
            curves = padded([[_percent(record, rule) for record in run.rounds] for run in done], np.nan)  # (seeds, R)
            label = f"{label_text(names[method], METHOD)} ({label_text(rule)}, {counted(len(done), 'seed')})"
            _draw_curve(axes, curves, label, slot, len(drawn))
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
            handles.append(Patch(color="0.3", alpha=0.2, linewidth=0, label=BAND))
        if handles:
            placement: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "ncols": 2}
            axes.legend(handles=handles, frameon=False, fontsize=8, **placement)
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


def _percent(record: RoundRecord, rule: str) -> float:
    """Return the pooled accuracy of a round in per cent; NaN if no client was evaluated."""
    accuracy = record.rules.get(rule)
    return 100 * accuracy.pooled if accuracy else np.nan


def _draw_curve(axes: Axes, curves: Numbers, label: str, slot: int, methods: int) -> None:
    """Draw the rounds in which every seed was evaluated; markers of different methods are staggered."""
    rounds = np.flatnonzero(~np.isnan(curves).any(0))
    mean, style = curves[:, rounds].mean(0), line_style(slot)
    strength: Any = {"linewidth": 1.4 if slot else 2.2, "zorder": 2 if slot else 3}
    axes.plot(rounds + 1, mean, label=label, markevery=marks_apart(slot, len(rounds), methods), **strength, **style)
    if len(curves) > 1:
        low, high = np.reshape([spread(values) or () for values in curves[:, rounds].T.tolist()], (-1, 2)).T
        low, high = np.clip((low, high), 0, 100)  # Student's t knows no limits
        axes.fill_between(rounds + 1, low, high, color=style["color"], alpha=0.2, linewidth=0)
