"""Draw docs/images/spiral-features.png, the picture of the tutorial: why clients gain there.

    python tools/tutorial_figure.py

The runs are those of the tutorial's comparison. Left and middle: the features of one client's test points, alone and
with ProtoNorm. Right: how often points are recognised, by how many samples of their class their client has to train on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import protonorm as pn
from protonorm.report.drawing import write_figure
from protonorm.report.figures import STYLE

PLACE = Path(__file__).resolve().parent.parent / "docs" / "images" / "spiral-features.png"
SETTINGS = {
    "dataset": {"name": "spiral", "points": 500},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "clients": 10,
    "rounds": 6,
    "epochs": 4,
    "lr": 0.02,
}
SEEDS = [0, 1, 2]
CLIENT = 7  # of seed 0; it has four classes
BINS = {"1–10": (1, 10), "11–30": (11, 30), "31–60": (31, 60), "over 60": (61, 10**9)}  # samples to train on
TITLES = {"local": "alone", "protonorm": "with ProtoNorm"}


def recognised(results: list[pn.Result]) -> list[float]:
    """Return the share of right answers, in per cent, for each bin, over all clients, classes and seeds."""
    owned = np.concatenate([result.run.population.train.ravel() for result in results])  # (seeds · M · K,)
    counts = [result.confusion(client) for result in results for client in range(SETTINGS["clients"])]
    right = np.concatenate([np.diag(matrix) for matrix in counts])
    tested = np.concatenate([matrix.sum(1) for matrix in counts])
    inside = [(owned >= low) & (owned <= high) for low, high in BINS.values()]
    return [100 * right[mask].sum() / tested[mask].sum() for mask in inside]


def draw_features(axes: Axes, result: pn.Result) -> None:
    """Draw one client's test points as its network sees them, and the targets that it was sent."""
    client, part = result.clients[CLIENT], result.population.parts[CLIENT].test
    data, owned = result.population.dataset, result.run.population.train[CLIENT]
    features, labels = client.features(data.inputs[part]), data.labels[part]
    for label in np.unique(labels):
        points = features[labels == label]  # (n, 2)
        axes.plot(*points.T, ".", color=f"C{label}", ms=5, label=f"{data.classes[label]}, {owned[label]} samples")
    if "prototypes" in client.message:
        targets = result.experiment.algorithm.adapted("spiral", ()).gamma * client.message["prototypes"].numpy()
        colours = [f"C{label}" for label in range(len(targets))]
        axes.scatter(*targets.T, marker="*", s=90, c=colours, edgecolor="k", lw=0.6)
    share = 100 * np.mean(client.predict(data.inputs[part], result.run.info.headline) == labels)
    title = TITLES[result.run.info.experiment.algorithm.name]
    axes.set_title(f"client {CLIENT} {title}: {share:.0f} % right", fontsize=9)


def main() -> None:
    """Run the comparison of the tutorial and draw."""
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(STYLE):
        results = pn.compare("protonorm", out=folder, seeds=SEEDS, engine="serial", progress=False, **SETTINGS).results
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        *planes, bars = figure.subplots(1, 3)
        for axes, method in zip(planes, TITLES, strict=True):
            draw_features(axes, results[method][0])
            axes.set_xlabel("first feature")
        planes[0].set_ylabel("second feature")
        planes[0].legend(fontsize=7)
        for slot, method in enumerate(TITLES):
            heights, at = recognised(results[method]), np.arange(len(BINS)) + 0.4 * slot - 0.2
            bars.bar(at, heights, 0.38, label=TITLES[method])
            print(method, dict(zip(BINS, np.round(heights, 1), strict=True)))
        bars.set_xticks(range(len(BINS)), list(BINS))
        bars.set_xlabel("samples of the class at the client, to train on")
        bars.set_ylabel("recognised, %")
        bars.legend(fontsize=8)
        write_figure(figure, PLACE, 130)


if __name__ == "__main__":
    main()
