"""The map of a sweep: validation accuracy over two settings, a panel for each method and each value of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from protonorm.report.drawing import label_text
from protonorm.report.figures import STYLE
from protonorm.search.choice import Score

PANELS = 24  # at most; a reader cannot compare more
COLUMNS = 4  # panels beside each other
TEXTS = 12  # values of a setting up to which numbers are written into the squares


def sweep_map(scores: Sequence[Score], swept: Sequence[str]) -> Figure:
    """Draw the mean validation accuracy of all points; a bare square has no finished run for every seed."""
    panels = dict[str, list[Score]]()
    for score in scores:
        panels.setdefault(_title(score, swept[2:]), []).append(score)
    shown = dict(list(panels.items())[:PANELS])
    known = [value for some in shown.values() for score in some if (value := _per_cent(score)) is not None]
    low, high = (min(known), max(known)) if known else (0.0, 100.0)
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(1.2 + 3.0 * columns, 0.6 + 2.4 * rows), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False).ravel()
        images = [
            _draw(axes, title, some, swept[:2], (low, high))
            for axes, (title, some) in zip(places, shown.items(), strict=False)
        ]
        for axes in places[len(shown) :]:
            axes.set_axis_off()
        figure.colorbar(images[0], ax=list(places), label="validation accuracy, clients' mean (%)")
        if len(panels) > len(shown):
            figure.suptitle(f"the first {PANELS} of {len(panels)} panels")
        return figure


def _draw(
    axes: Axes, title: str, scores: Sequence[Score], names: Sequence[str], limits: tuple[float, float]
) -> AxesImage:
    """Draw one panel: the second setting to the right, the first upwards, or one of them alone."""
    across, upwards = (names[-1], names[0]) if len(names) > 1 else (names[0], "")
    held = [name for name in (across, upwards) if any(name in score.point.chosen for score in scores)]
    across, upwards = (held[0], held[1]) if len(held) > 1 else (held[0] if held else "", "")
    columns, rows = _values(scores, across), _values(scores, upwards)
    field = np.full((len(rows), len(columns)), np.nan)
    for score in scores:
        place = rows.index(_value(score, upwards)), columns.index(_value(score, across))
        field[place] = np.nan if (value := _per_cent(score)) is None else value
    image = axes.imshow(field, aspect="auto", cmap="viridis", origin="lower", vmin=limits[0], vmax=limits[1])
    axes.set_xticks(range(len(columns)), [label_text(one) for one in columns])
    axes.set_yticks(range(len(rows)), [label_text(one) for one in rows])
    axes.set_xlabel(label_text(across))
    axes.set_ylabel(label_text(upwards))
    axes.set_title(label_text(title, 40), fontsize=9)
    if max(field.shape) <= TEXTS:
        middle = sum(limits) / 2
        for (row, column), value in np.ndenumerate(field):
            if not np.isnan(value):
                colour = "white" if value < middle else "black"
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)
    return image


def _title(score: Score, others: Sequence[str]) -> str:
    words = [f"{name.split('.')[-1]}={score.point.chosen[name]}" for name in others if name in score.point.chosen]
    return ", ".join([score.point.method, *words])


def _values(scores: Sequence[Score], name: str) -> list[str]:
    """List the values of a setting, numbers by size and all else as it comes."""
    found = [score.point.chosen.get(name) for score in scores]
    if all(isinstance(one, int | float) for one in found):
        found.sort(key=_number)
    return list(dict.fromkeys(_text(one) for one in found))


def _value(score: Score, name: str) -> str:
    return _text(score.point.chosen.get(name))


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> float:
    return float(value)


def _per_cent(score: Score) -> float | None:
    return 100 * score.validation.mean if score.eligible and score.validation else None
