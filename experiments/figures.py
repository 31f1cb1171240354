"""Figures of the paper from recorded runs, in its style, and the spiral in the plane. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from protonorm.analysis.statistics import Numbers
from protonorm.core.text import visible
from protonorm.report import drawing
from protonorm.report.drawing import LIGHT, SLOTS, label_text, refuse_foreign, write_figure
from protonorm.runs.run import Run

COLUMN, FULL = 3.3, 6.9  # inches: one column of a page, or both
DPI = 300
NAME = 60  # maximum characters of a run's name
ACROSS = 3  # panels side by side
RING, MARK = 4.0, 2.5  # sizes of rings and markers, in points
HATCHES = ("", "////", "....", "xxxx")  # of bars, once the colours are used up
FEW_CLASSES = 20  # maximum classes drawn as bars
ORTHOGONAL = float(np.sqrt(2))  # the distance that the paper expects
MOST_FEATURES = 1500  # maximum points of a panel: more only enlarge the file
MOST_SAMPLES = 6000  # likewise, for the data
LEGEND, KEY = 80, 12  # characters that fit side by side in a legend; characters that a legend key takes
ROW, FEW_ROWS = 0.15, 2  # inches per row of a legend; rows that fit without a taller figure
# Okabe and Ito's colours, which are distinguishable for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A800", "#000000")
STYLE: Any = {  # matplotlib settings
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],  # both come with matplotlib
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # embed fonts as TrueType, so that text stays text
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
}

Vectors = Numbers  # (n, 2)
Classes = NDArray[np.int64]  # (n,)


@contextmanager
def paper_style(**options: Any) -> Iterator[None]:
    """Apply the style of a paper inside this context."""
    with matplotlib.rc_context(STYLE | {"axes.prop_cycle": cycler(color=COLOURS)} | options):
        yield


def add_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Add a legend below a figure, in at most `columns` columns; a long legend makes the figure taller."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(columns, LEGEND // (KEY + max(map(len, labels), default=0))))
    rows = -(-len(labels) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + ROW * max(0, rows - FEW_ROWS))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.2)


def label(number: int, text: str) -> str:
    """Return the label of a panel as in the paper: (a) CIFAR-10."""
    return f"({chr(ord('a') + number)}) {text}"


def save(figure: Figure, path: Path, title: str, description: str, stamp: str = "") -> list[Path]:
    """Write a figure as PNG and PDF with title and description in the metadata; a stamp is printed across it."""
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "pdf")]
    refuse_foreign(files)
    if stamp:
        figure.text(0.5, 0.5, stamp, ha="center", va="center", rotation=20, fontsize=34, color="0.5", alpha=0.35)
    with paper_style():
        for file, key in zip(files, ("Description", "Subject"), strict=True):
            write_figure(figure, file, DPI, **{"Title": visible(title), key: visible(description)})
    return files


def _panels(
    count: int, across: int, width: float, height: float, extra: float = 0.0, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` panels with `across` side by side, in rows of this height, and `more` below them."""
    down = -(-count // across)
    figure = Figure(figsize=(width, height * down + extra), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, **shared).ravel().tolist()
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def convergence(runs: Mapping[str, Run]) -> Figure:
    """Draw the steps of each round's alignment, and the pooled accuracy under the headline rule.

    A ring marks the reported round.
    """
    rings: list[tuple[float, float]] = []
    with paper_style():
        figure, (left, right) = _panels(2, 2, COLUMN, 1.9, sharex=True)
        for number, (name, run) in enumerate(runs.items()):
            steps = {record.round: record.server.get("alignment.steps", np.nan) for record in run.rounds}
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

    A ring marks the reported round, a cross the end of an unfinished run, and an arrow at the right edge the number
    printed in the paper.
    """
    methods: dict[str, Run] = {}  # with a run of each
    for runs in panels.values():
        methods |= {method: run for method, run in runs.items() if method not in methods}
    styles = drawing.slots(methods)
    across = min(ACROSS, len(panels))
    with paper_style():
        figure, grid = _panels(len(panels), across, FULL if across > 1 else 1.4 * COLUMN, 2.4, 0.4)
        for number, (axes, (title, runs)) in enumerate(zip(grid, panels.items(), strict=True)):
            _accuracy_panel(axes, runs, printed.get(title, {}), styles)
            axes.set_title(label(number, label_text(title, NAME)) if len(panels) > 1 else label_text(title, NAME))
        for method, run in methods.items():  # one legend for all panels
            text = f"{label_text(method, NAME)} ({label_text(run.info.headline)})"
            grid[0].plot([], [], label=text, linewidth=0.9, **_look(styles[method], 1, 1))
        every = [run for runs in panels.values() for run in runs.values()]
        signs = {"reported round": ("o", any(run.chosen for run in every)), "printed": ("<", any(printed.values()))}
        signs |= {"not finished": ("x", not all(run.finished for run in every))}
        for text, (sign, is_there) in signs.items():
            if is_there:
                grid[0].plot([], [], sign, color="0.3", mfc="none", ms=RING, mew=0.8, label=text)
        add_legend(figure, grid[0], ACROSS)
        return figure


def _accuracy_panel(
    axes: Axes, runs: Mapping[str, Run], printed: Mapping[str, float], styles: Mapping[str, int]
) -> None:
    rings: list[tuple[float, float]] = []
    for method, run in runs.items():
        pooled = _pooled(run)
        look = _look(styles[method], len(pooled), len(styles))
        rings += _accuracy(axes, "", run, look, rings)
        if pooled and not run.finished:
            axes.plot(*list(pooled.items())[-1], "x", color=look["color"], ms=RING, mew=1.0)
        if method in printed:
            edge = axes.get_yaxis_transform()  # x as a fraction of the panel
            axes.plot(1.02, printed[method], "<", color=look["color"], ms=RING, transform=edge, clip_on=False)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _pooled(run: Run) -> dict[int, float]:
    """Return the pooled accuracy under the headline rule by round, in per cent."""
    return {
        record.round: 100 * accuracy.pooled
        for record in run.rounds
        if (accuracy := record.rules.get(run.info.headline))
    }


def _accuracy(
    axes: Axes, name: str, run: Run, look: Mapping[str, Any], before: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Draw a run's accuracy over rounds, with a ring at the reported round; return the rings."""
    pooled = _pooled(run)
    axes.plot(list(pooled), list(pooled.values()), label=label_text(name, NAME) or None, linewidth=0.9, **look)
    round = run.chosen.record.round if run.chosen else 0
    if round not in pooled:  # a round chosen by validation may lack a test accuracy
        return []
    at = (float(round), pooled[round])
    axes.plot(*at, "o", color=look["color"], mfc="none", ms=drawing.ring_size([at], before, RING), mew=0.8)
    return [at]


def first_distances(run: Run) -> Numbers | None:
    """Return the minimum, mean and maximum distance along the first alignment (steps + 1, 3), or None."""
    distances = run.figures().get("alignment.distances")
    return None if distances is None else distances.astype(np.float64)


def distance_curves(runs: Mapping[str, Run]) -> Figure:
    """Draw the minimum, mean and maximum distance after each step of the first alignment, a panel for each run."""
    with paper_style():
        figure, grid = _panels(len(runs), len(runs), COLUMN, 1.85, sharey=True)
        for number, (axes, (title, run)) in enumerate(zip(grid, runs.items(), strict=True)):
            distances = first_distances(run)
            if distances is not None and distances.size:
                steps = np.arange(len(distances))
                least, mean, greatest = distances.T
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
    """Return the margins (K',) of the last round that has any, divided by the largest; None without prototypes."""
    normalised = [margins[1] for record in run.rounds if (margins := run.margins(record))]
    return np.asarray(normalised[-1] / normalised[-1].max()) if normalised and normalised[-1].any() else None


def margin_panels(panels: Mapping[str, Mapping[str, Run]]) -> Figure:
    """Draw each class's margin, a panel for each data set: bars for few classes, sorted curves for many."""
    with paper_style():
        figure, grid = _panels(len(panels), 1, COLUMN, 1.55, 0.25)
        for number, (axes, (title, runs)) in enumerate(zip(grid, panels.items(), strict=True)):
            margins = {name: values for name, run in runs.items() if (values := normalised_margins(run)) is not None}
            classes = max(map(len, margins.values()), default=0)
            (_margin_bars if classes <= FEW_CLASSES else _margin_curves)(axes, margins)
            axes.set_ylim(0, 1.05)
            axes.set_ylabel("normalised margin")
            axes.set_title(label(number, label_text(title, NAME)) if len(panels) > 1 else "")
        add_legend(figure, grid[0], 3)
        return figure


def heat_maps(runs: Mapping[str, Run]) -> Figure:
    """Draw samples by client and class, two maps per row, each with its own colour scale; titles may hold formulas."""
    with paper_style():
        figure, grid = _panels(len(runs), 2, COLUMN, 1.62)
        for number, (axes, (title, run)) in enumerate(zip(grid, runs.items(), strict=True)):
            counts = np.sum(run.population, axis=0)  # (M, K)
            image = axes.imshow(counts, aspect="auto", cmap="Blues", origin="lower", interpolation="nearest")
            bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=5, length=1.5)
            axes.tick_params(labelsize=6)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.spines[["top", "right"]].set_visible(True)
            axes.set_title(label(number, title))
            if number % 2 == 0:
                axes.set_ylabel("client")
            if number >= len(runs) - 2:
                axes.set_xlabel("class")
        return figure


def _margin_bars(axes: Axes, margins: Mapping[str, Numbers]) -> None:
    width = 0.8 / max(len(margins), 1)
    for number, (name, values) in enumerate(margins.items()):
        positions = np.arange(len(values)) + (number - (len(margins) - 1) / 2) * width
        look: Any = {"color": LIGHT[number % SLOTS], "hatch": HATCHES[number // SLOTS % len(HATCHES)]}
        axes.bar(positions, values, width * 0.92, label=label_text(name, NAME), **look)
    axes.set_xticks(range(max(map(len, margins.values()), default=0)))
    axes.set_xlabel("class")


def _margin_curves(axes: Axes, margins: Mapping[str, Numbers]) -> None:
    for number, (name, values) in enumerate(margins.items()):
        look = _look(number, len(values), len(margins))
        axes.plot(np.sort(values), label=label_text(name, NAME), linewidth=0.6, **look)
    axes.set_xlabel("classes, sorted by margin")


def _look(slot: int, points: int, methods: int) -> dict[str, Any]:
    """Return the line style of a method's curve."""
    marks = {"markersize": MARK, "markevery": drawing.marks_apart(slot, points, methods)}
    return drawing.line_style(slot) | marks | {"zorder": 2 if slot else 3}


@dataclass(frozen=True)
class Star:
    """Panel of a figure: rays from the origin to prototypes, and points, both with their classes."""

    title: str
    rays: Vectors
    ray_classes: Classes
    points: Vectors
    point_classes: Classes
    dashed: bool = False  # for global prototypes; rays to local prototypes are solid
    small: bool = False  # whether the points are samples, drawn small


def stars(panels: Sequence[Star], across: int, width: float = FULL, lettered: bool = True) -> Figure:
    """Draw stars in a grid with `across` columns."""
    with paper_style():
        figure, grid = _panels(len(panels), across, width, width / across * 1.16)
        for number, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
            _draw(axes, panel)
            axes.set_xlabel(label(number, panel.title) if lettered else panel.title, fontsize=7, labelpad=2)
        return figure


def toy_data(points: NDArray[np.float32], labels: NDArray[np.int64], run: Run) -> Figure:
    """Draw the data's points (n, 2) by class, and each client's samples of each class."""
    counts = np.sum(run.population, axis=0)  # (M, K)
    with paper_style():
        figure, (left, right) = _panels(2, 2, COLUMN, 1.7)
        chosen = _thinned(len(labels), MOST_SAMPLES)
        x, y = points[chosen].T
        left.scatter(x, y, s=0.7, c=_colours(labels[chosen]), linewidths=0, rasterized=True)
        left.set(aspect="equal", xticks=[], yticks=[])
        left.spines[["top", "right"]].set_visible(True)
        bottoms = np.cumsum(counts, axis=1) - counts  # (M, K): bars of a client are stacked
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
    axes.spines[["top", "right"]].set_visible(True)
    axes.text(0.97, 0.03, f"±{reach:.2g}", transform=axes.transAxes, ha="right", va="bottom", fontsize=5, color="0.4")


def _thinned(size: int, limit: int) -> NDArray[np.int64]:
    """Return at most `most` of `size` positions, evenly spaced."""
    return np.linspace(0, size - 1, min(limit, size)).astype(np.int64)


def _reach(vectors: Vectors, percentile: float = 100) -> float:
    return float(np.percentile(np.abs(vectors), percentile)) if vectors.size else 0.0


def _colours(classes: Classes) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in classes.tolist()]
