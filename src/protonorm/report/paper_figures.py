"""The paper's figures of runs: convergence, distances, margins, and who holds what. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from protonorm.report.drawing import label_text
from protonorm.report.palette import LIGHT, SLOTS, line_style, marks_apart, ring_size
from protonorm.report.style import COLOURS, COLUMN, FULL, add_legend, label, paper_style
from protonorm.runs.run import Run

Numbers = NDArray[np.float64]

NAME = 60  # characters of a run's name
ACROSS = 3  # panels side by side
RING, MARK = 4.0, 2.5  # points: how large rings and markers are
HATCHES = ("", "////", "....", "xxxx")  # of bars, once the colours are used up
FEW_CLASSES = 20  # up to which bars can be told apart
ORTHOGONAL = float(np.sqrt(2))  # the distance that the paper expects


def convergence(runs: Mapping[str, Run]) -> Figure:
    """Draw the steps of each round's alignment, and the pooled accuracy under the headline rule.

    A ring is the round that is reported.
    """
    rings: list[tuple[float, float]] = []
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        for number, (name, run) in enumerate(runs.items()):
            steps = {one.round: one.server.get("alignment.steps", np.nan) for one in run.rounds}
            look = _look(number, len(steps), len(runs))
            left.plot(list(steps), list(steps.values()), label=label_text(name, NAME), linewidth=0.9, **look)
            rings += _accuracy(right, name, run, _look(number, len(_pooled(run)), len(runs)), rings)
        left.set_ylabel("PA iterations")
        right.set_ylabel("test accuracy (%)")
        left.set_ylim(bottom=0)
        for number, (axes, title) in enumerate(((left, "alignment"), (right, "accuracy"))):
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_title(label(number, title))
        add_legend(figure, left, 2)
        return figure


def accuracy_panels(panels: Mapping[str, Mapping[str, Run]], printed: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw each method's pooled accuracy over rounds under its headline rule, a panel for each column of a table.

    A ring is the round that is reported, a cross the end of a run that is not finished, and an arrow at the right edge
    the number that the paper prints.
    """
    methods = list(dict.fromkeys(method for runs in panels.values() for method in runs))
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    with paper_style():
        width = FULL if across > 1 else 1.4 * COLUMN
        figure = Figure(figsize=(width, 2.4 * down + 0.4), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False).ravel()
        for number, (axes, (title, runs)) in enumerate(zip(grid, panels.items(), strict=False)):
            _accuracy_panel(axes, runs, printed.get(title, {}), methods)
            axes.set_title(label(number, label_text(title, NAME)) if len(panels) > 1 else label_text(title, NAME))
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for slot, method in enumerate(methods):  # one legend for all panels
            grid[0].plot([], [], label=label_text(method, NAME), linewidth=0.9, **_look(slot, 1, 1))
        held = [run for runs in panels.values() for run in runs.values()]
        signs = {"reported round": ("o", any(run.chosen for run in held)), "printed": ("<", any(printed.values()))}
        signs |= {"not finished": ("x", not all(run.finished for run in held))}
        for told, (sign, is_there) in signs.items():
            if is_there:
                grid[0].plot([], [], sign, color="0.3", mfc="none", ms=RING, mew=0.8, label=told)
        add_legend(figure, grid[0], ACROSS)
        return figure


def _accuracy_panel(axes: Axes, runs: Mapping[str, Run], printed: Mapping[str, float], methods: Sequence[str]) -> None:
    rings: list[tuple[float, float]] = []
    for method, run in runs.items():
        slot, pooled = methods.index(method), _pooled(run)
        look = _look(slot, len(pooled), len(methods))
        rings += _accuracy(axes, "", run, look, rings)
        if pooled and not run.finished:
            axes.plot(*list(pooled.items())[-1], "x", color=look["color"], ms=RING, mew=1.0)
        if method in printed:
            edge = axes.get_yaxis_transform()  # across as a share of the panel
            axes.plot(1.02, printed[method], "<", color=look["color"], ms=RING, transform=edge, clip_on=False)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _pooled(run: Run) -> dict[int, float]:
    """Give the pooled accuracy under the headline rule by round, in per cent."""
    return {one.round: 100 * found.pooled for one in run.rounds if (found := one.rules.get(run.info.headline))}


def _accuracy(
    axes: Axes, name: str, run: Run, look: Mapping[str, Any], before: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Draw a run's accuracy over rounds, with a ring where it is reported; give the rings."""
    pooled = _pooled(run)
    axes.plot(list(pooled), list(pooled.values()), label=label_text(name, NAME) or None, linewidth=0.9, **look)
    round = run.chosen.record.round if run.chosen else 0
    if round not in pooled:  # it may be chosen by validation, and not tested
        return []
    at = (float(round), pooled[round])
    axes.plot(*at, "o", color=look["color"], mfc="none", ms=ring_size([at], before, RING), mew=0.8)
    return [at]


def first_distances(run: Run) -> Numbers | None:
    """Read the least, mean and greatest distance along the first alignment, (steps + 1, 3); None if there was none."""
    found = run.figures().get("alignment.distances")
    return None if found is None else found.astype(np.float64)


def distance_curves(runs: Mapping[str, Run]) -> Figure:
    """Draw the smallest, mean and largest distance after each step of the first alignment, a panel for each run."""
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.85), layout="constrained")
        grid = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
        for number, (axes, (title, run)) in enumerate(zip(grid, runs.items(), strict=True)):
            found = first_distances(run)
            if found is not None and found.size:
                steps = np.arange(len(found))
                least, mean, greatest = found.T
                axes.fill_between(steps, least, greatest, color=COLOURS[5], alpha=0.25, linewidth=0)
                axes.plot(steps, greatest, "--", color=COLOURS[4], label="max")
                axes.plot(steps, mean, "-", color=COLOURS[0], label="mean")
                axes.plot(steps, least, "-.", color=COLOURS[2], label="min")
            axes.axhline(ORTHOGONAL, color="0.3", linestyle=":", linewidth=0.9, label="$\\sqrt{2}$")
            axes.set_xlabel("PA iteration")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_ylim(bottom=0)
            axes.set_title(label(number, label_text(title, NAME)))
        grid[0].set_ylabel("pairwise distance")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, handlelength=2.0)
        return figure


def normalised_margins(run: Run) -> Numbers | None:
    """Divide the margins (K',) of the last round that has any by the largest; None if no round has prototypes."""
    known = [found[1] for record in run.rounds if (found := run.margins(record))]
    if not known or not known[-1].any():
        return None
    return np.asarray(known[-1] / known[-1].max())


def margin_panels(panels: Mapping[str, Mapping[str, Run]]) -> Figure:
    """Draw each class's margin, a panel for each data set: bars for few classes, sorted curves for many."""
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.55 * len(panels) + 0.25), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for number, (axes, (title, runs)) in enumerate(zip(grid, panels.items(), strict=True)):
            found = {name: values for name, run in runs.items() if (values := normalised_margins(run)) is not None}
            classes = max(map(len, found.values()), default=0)
            (_margin_bars if classes <= FEW_CLASSES else _margin_curves)(axes, found)
            axes.set_ylim(0, 1.05)
            axes.set_ylabel("normalised margin")
            axes.set_title(label(number, label_text(title, NAME)) if len(panels) > 1 else "")
        add_legend(figure, grid[0], 3)
        return figure


def heat_maps(runs: Mapping[str, Run]) -> Figure:
    """Draw samples by client and class, two maps across, each with its own colours; titles may hold formulas."""
    down = -(-len(runs) // 2)
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.62 * down), layout="constrained")
        grid = figure.subplots(down, 2, squeeze=False)
        for number, (axes, (title, run)) in enumerate(zip(grid.flat, runs.items(), strict=False)):
            counts = np.sum(run.population, axis=0)  # (M, K)
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


def _margin_bars(axes: Axes, found: Mapping[str, Numbers]) -> None:
    width = 0.8 / max(len(found), 1)
    for number, (name, values) in enumerate(found.items()):
        places = np.arange(len(values)) + (number - (len(found) - 1) / 2) * width
        axes.bar(
            places,
            values,
            width * 0.92,
            color=LIGHT[number % SLOTS],
            hatch=HATCHES[number // SLOTS % len(HATCHES)],
            label=label_text(name, NAME),
        )
    axes.set_xticks(range(max(map(len, found.values()), default=0)))
    axes.set_xlabel("class")


def _margin_curves(axes: Axes, found: Mapping[str, Numbers]) -> None:
    for number, (name, values) in enumerate(found.items()):
        look = _look(number, len(values), len(found))
        axes.plot(np.sort(values), label=label_text(name, NAME), linewidth=0.6, **look)
    axes.set_xlabel("classes, sorted by margin")


def _look(slot: int, points: int, methods: int) -> dict[str, Any]:
    """Say how the curve of a method is drawn."""
    return line_style(slot) | {"markersize": MARK, "markevery": marks_apart(slot, points, methods)}
