"""How alignment and accuracy converge over rounds. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protonorm.history import Run
from protonorm.report.paper import COLUMN, LINES, label, paper_style

FEW = 5  # rounds up to which points are marked: a line needs two


def convergence(runs: Mapping[str, Run]) -> Figure:
    """Draw the steps of each round's alignment, and the pooled accuracy under the headline rule."""
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        for number, (name, run) in enumerate(runs.items()):
            rounds = [line["round"] for line in run.history]
            steps = [line["server"].get("alignment.steps", np.nan) for line in run.history]
            found = [line["rules"].get(run.about["headline"]) for line in run.history]
            right_answers = [np.nan if one is None else 100 * one["pooled"] for one in found]
            line, marker = LINES[number % len(LINES)], "." if len(rounds) <= FEW else ""
            left.plot(rounds, steps, line, marker=marker, label=name, linewidth=0.9)
            right.plot(rounds, right_answers, line, marker=marker, label=name, linewidth=0.9)
        left.set_ylabel("PA iterations")
        right.set_ylabel("test accuracy (%)")
        left.set_ylim(bottom=0)
        for number, (axes, title) in enumerate(((left, "alignment"), (right, "accuracy"))):
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_title(label(number, title))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, handlelength=2.2)
        return figure
