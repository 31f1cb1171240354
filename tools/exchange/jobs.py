"""What is run to see where exchange pays: methods and their controls, places of the map, and equal compute.

Methods with two networks train both; those with one get more rounds instead, by the operations of forward and backward
passes. All pictures are of those that took no part while Duet was made: the first ones of each class are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from protonorm import Experiment
from protonorm.data.prepared import Arrays, data_root, read_prepared, write_prepared
from protonorm.models.choose import chosen, networks
from protonorm.models.split import examine

SETTINGS: dict[str, Any] = {"models": "light", "feature_dim": 128, "epochs": 1, "batch_size": 16, "evaluate_every": 5}
SECOND, ROUNDS = "plain@0.5", 40  # the second network, and the rounds of Duet
JUDGED = 1 + 0.1 / 0.9 / 3  # what Duet computes beside training: a forward pass of the validation samples
RATES, TUNING, SEEDS = (0.03, 0.1), 20, (0, 1, 2)  # a seed is also that of the partition
SEEN = 1000  # pictures of each class that are left out; to make Duet, the first 500 were looked at
ALONE = {"control": "solo"}
TWO = {"name": "fml", "alpha": 1.0, "beta": 1.0}  # cross-entropies alone; alone as well, its meme is a second network
METHODS: dict[str, dict[str, Any]] = {
    "Local": {"algorithm": "local"},
    "Local, two networks": {"algorithm": TWO, **ALONE},
    "ProtoNorm": {"algorithm": "protonorm"},
    "FML": {"algorithm": "fml"},
    "FedKD": {"algorithm": "fedkd"},
    "FedMRL": {"algorithm": "fedmrl"},
    "Duet": {"algorithm": "duet"},
    "Duet, solo": {"algorithm": "duet", **ALONE},
    "ProtoNorm, solo": {"algorithm": "protonorm", **ALONE},
    "FML, solo": {"algorithm": "fml", **ALONE},
    "FedAvg of the second network": {"algorithm": "fedavg", "models": SECOND},
    "Duet without own networks": {"algorithm": "tools/exchange/shared_alone.py:SharedAlone", "models": SECOND},
}
TABLE = (*tuple(METHODS)[:8], *tuple(METHODS)[-2:])
MAP = ("Local", "ProtoNorm", "ProtoNorm, solo", "FML", "FML, solo", "Duet, solo", "Duet")
TUNED: dict[str, list[dict[str, Any]]] = {  # settings that are tried beside learning rates; none for the others
    name: [{}, {"gamma": "auto"}] for name in ("ProtoNorm", "ProtoNorm, solo")
}
ABLATION: dict[str, dict[str, Any]] = {
    "Duet": {},
    "nothing learned from the shared network, λ = 0": {"lam": 0.0},
    "class shares in the scores": {"balanced": False},
    "both": {"lam": 0.0, "balanced": False},
}


class Place(NamedTuple):
    """A cell of the map."""

    clients: int
    samples: int  # of a client, on average, all parts together
    alpha: float
    dataset: str = "cifar10"

    def __str__(self) -> str:
        """Name it as a heading."""
        return f"{self.dataset}, {self.clients} clients × {self.samples}, α = {self.alpha:g}"


CENTRE = Place(100, 100, 0.5)
WHOLE = [Place(m, n, a) for m, n, a in itertools.product((20, 100), (50, 100), (0.1, 0.5, 1.0))]  # the quickest first


class Job(NamedTuple):
    """A run, and what it is for."""

    method: str
    place: Place
    seed: int
    lr: float
    fields: Mapping[str, Any] = {}  # never changed; further settings of the method

    def experiment(self, data: Path) -> Experiment:
        """Write its settings."""
        own, place = dict(METHODS[self.method]), self.place
        name = own["algorithm"] if isinstance(own["algorithm"], dict) else {"name": own["algorithm"]}
        partition = {"name": "dirichlet", "alpha": place.alpha, "seed": self.seed}
        partition |= {"least": 8 if place.samples > 50 else 4} if place.alpha < 0.5 else {}
        two = "models" not in own and name["name"] not in ("local", "protonorm")
        settings = SETTINGS | own | {"algorithm": {**name, **self.fields}, "lr": self.lr, "seed": self.seed}
        settings |= {"auxiliary": SECOND} if two else {}
        settings["rounds"] = ROUNDS if name["name"] == "duet" else rounds_of(settings["models"], two)
        pictures = {"name": place.dataset, "root": str(data), "samples": place.clients * place.samples}
        return Experiment.of(settings | {"dataset": pictures, "partition": partition, "clients": place.clients})


@cache
def rounds_of(models: str, two: bool) -> int:
    """Return the rounds in which a method with one or two networks costs what Duet does in ROUNDS, rounded up."""
    macs = _macs(SETTINGS["models"]) + _macs(SECOND)
    return ceil(ROUNDS * JUDGED * macs / (_macs(models) + (_macs(SECOND) if two else 0)))


def _macs(models: str) -> float:
    """Count the multiplications and additions of a forward pass, on average over networks."""
    return mean(examine(name, (3, 32, 32), SETTINGS["feature_dim"], 10).macs for name in networks(chosen(models)))


def write_fresh_pictures(folder: Path, name: str) -> None:
    """Write the prepared pictures of a data set without the first SEEN of each class, unless that is done."""
    path = folder / f"{name}.npz"
    if path.exists():
        return
    data = read_prepared(data_root() / f"{name}.npz")
    order = np.argsort(data.labels, kind="stable")
    firsts = np.searchsorted(data.labels[order], np.arange(len(data.classes)))  # (K,) where each class begins
    ranks = np.empty(len(order), np.int64)  # (N,) how many of its class stand before a picture
    ranks[order] = np.arange(len(order)) - firsts[data.labels[order]]
    kept = ranks >= SEEN
    write_prepared(path, Arrays(data.images[kept], data.labels[kept], data.split[kept], data.classes))


def tuning(method: str) -> list[Job]:
    """List the runs that choose a method's settings."""
    tried = itertools.product(RATES, TUNED.get(method, [{}]))
    return [Job(method, CENTRE, TUNING, lr, fields) for lr, fields in tried]
