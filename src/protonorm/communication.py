"""What methods send, as formulas: floating numbers a round, up and down, from the second round on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from protonorm.history import Run
from protonorm.models.choose import network, networks
from protonorm.setup import Setup
from protonorm.tensors import numbers, snapshot


class Sizes(NamedTuple):
    """What the formulas are made of; all clients have the first network's sizes."""

    clients: int  # M
    classes: int  # K
    width: int  # d
    held: int  # Σ K_i, classes in the training parts, over clients
    features: int  # |θ|, floating numbers of the features, batch norm's statistics counted
    head: int  # |φ|
    method: Any

    @property
    def model(self) -> int:
        """Count the whole model, |w| = |θ| + |φ|."""
        return self.features + self.head

    @property
    def generator(self) -> int:
        """Count FedGen's generator, P(G) = (q + K)h + 5h + (h + 1)d: two layers and batch norm with its statistics."""
        hidden, noise = int(self.method.hidden), int(self.method.noise)
        return (noise + self.classes) * hidden + 5 * hidden + (hidden + 1) * self.width


class Formula(NamedTuple):
    """One line of the table."""

    text: str
    up: Callable[[Sizes], int]
    down: Callable[[Sizes], int]


_PROTOTYPES = Formula("Σ (K_i + K)·d", lambda s: s.held * s.width, lambda s: s.clients * s.classes * s.width)
_MODELS = Formula("Σ 2·|w_i|", lambda s: s.clients * s.model, lambda s: s.clients * s.model)

FORMULAS: dict[str, Formula] = {
    "protonorm": _PROTOTYPES,
    "fedproto": _PROTOTYPES,
    "fedtgp": _PROTOTYPES,
    "feddistill": Formula("Σ (K_i + K)·K", lambda s: s.held * s.classes, lambda s: s.clients * s.classes**2),
    "lgfedavg": Formula("Σ 2·|φ_i|", lambda s: s.clients * s.head, lambda s: s.clients * s.head),
    "fml": Formula("M·(|θ_aux| + |φ_aux|)·2", lambda s: s.clients * s.model, lambda s: s.clients * s.model),
    "fedkd": Formula("M·(|θ_aux| + |φ_aux|)·2·r", lambda s: s.clients * s.model, lambda s: s.clients * s.model),
    "fednh": Formula(
        "Σ 2·(|θ_i| + 1) + (K_i + K)·d",
        lambda s: s.clients * (s.features + 1) + s.held * s.width,
        lambda s: s.clients * (s.features + 1 + s.classes * s.width),
    ),
    "feduv": _MODELS,
    "fedavg": _MODELS,
    "fedgh": Formula("Σ K_i·d + |φ_i|", lambda s: s.held * s.width, lambda s: s.clients * s.head),
    "fedgen": Formula("Σ 2·|φ_i| + P(G)", lambda s: s.clients * s.head, lambda s: s.clients * (s.head + s.generator)),
    "local": Formula("0", lambda s: 0, lambda s: 0),
}


def sizes(setup: Setup) -> Sizes:
    """Measure what the formulas need of an experiment."""
    width = setup.experiment.feature_dim or 0
    first = network(networks(setup.experiment.models)[0], setup.dataset.shape, width, setup.dataset.num_classes)
    train, _ = setup.class_counts
    return Sizes(
        clients=setup.experiment.clients,
        classes=setup.dataset.num_classes,
        width=width,
        held=int(np.count_nonzero(train)),
        features=numbers(snapshot("features", first.features)),
        head=numbers(snapshot("head", first.head)),
        method=setup.experiment.algorithm,
    )


def sizes_of(run: Run) -> Sizes:
    """Find the same in a run's record; the data are not needed."""
    about, settings = run.about, run.experiment
    size, width, classes = about["input"]["shape"], settings["feature_dim"], len(about["classes"])
    shape = (size[2], size[0], size[1]) if len(size) == 3 else tuple(size)
    first = network(networks(settings["models"])[0], shape, width, classes)
    return Sizes(
        clients=settings["clients"],
        classes=classes,
        width=width,
        held=int(np.count_nonzero(about["counts"]["train"])),
        features=numbers(snapshot("features", first.features)),
        head=numbers(snapshot("head", first.head)),
        method=SimpleNamespace(**settings["algorithm"]),
    )
