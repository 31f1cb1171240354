"""Small sweeps for tests: the spiral."""

import protonorm as pn
from protonorm.search.grid import read_grid
from protonorm.search.sweeping import Sweep

SPIRAL = [
    "dataset=spiral",
    "dataset.points=30",
    "partition.alpha=0.5",
    "partition.least=4",
    "clients=3",
    "rounds=2",
    "batch_size=8",
    "lr=0.05",
]


def sweep(out, *words):
    """Make a sweep of the spiral."""
    return Sweep(read_grid([*SPIRAL, *words]), out)


def run_all(found, told=None, **options):
    """Run what is left of a sweep in this process."""
    found.run(found.jobs(), (told if told is not None else []).append, **{"engine": "serial"} | options)


def spiral_settings(**settings):
    """Return the same settings as plain data."""
    usual = {"dataset": {"name": "spiral", "points": 30}, "partition": {"name": "dirichlet", "alpha": 0.5, "least": 4}}
    usual |= {"clients": 3, "rounds": 2, "batch_size": 8, "lr": 0.05}
    return pn.Experiment.of(usual | settings)
