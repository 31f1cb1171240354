"""Floating-point numbers that a method sends per round, from its schema and the clients' classes.

Symbols of the schema depend on the data: K_i classes in client i's training part, K' classes over all clients. The
counts are those of a round in which every client replies and the server knows all K' classes: usually from the second
round on. Where the schema allows several forms, the first counts: FedKD sends a matrix in factors where that is
shorter, so its counts are upper bounds, as are those of FPL's clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.config.components import build
from protonorm.core import Task, seeded
from protonorm.core.model import Trunk
from protonorm.core.schema import Size, Slot
from protonorm.models import widest
from protonorm.models.choose import Recipe
from protonorm.runs.run import Run
from protonorm.runs.schema import Traffic


class Formula(NamedTuple):
    """Numbers that one client sends (up) and receives (down), in symbols such as |model| + K_i·d."""

    up: str
    down: str


def formula(task: Task) -> Formula:
    """Return the formulas of what one client sends and receives in a round."""
    return Formula(_written(task.schema.up), _written(task.schema.down))


def group_sizes(task: Task) -> dict[str, int]:
    """Count the floating-point numbers of each group in a formula, such as |model|."""
    return _groups(task.schema.up) | _groups(task.schema.down)


def round_floats(task: Task, train: NDArray[np.int64], cohort: Sequence[int] | None = None) -> Traffic:
    """Count what a cohort (all clients by default) sends and receives in a round, from the training samples (M, K)."""
    schema, owned = task.schema, train > 0
    present_classes = int(owned.any(0).sum())  # K'
    chosen = owned if cohort is None else owned[list(cohort)]
    most = {"K'": present_classes, "N": len(chosen), "C": int(chosen.sum())}  # N clients; at most one cluster a vector
    own, clients = np.unique(chosen.sum(1), return_counts=True)  # distinct K_i, and the number of clients with each
    ups = (schema.numbers(schema.up, {"K_i": classes} | most) for classes in own.tolist())
    return Traffic(
        up=sum(count * floats for count, floats in zip(clients.tolist(), ups, strict=True)),
        down=len(chosen) * schema.numbers(schema.down, most),
    )


def run_floats(run: Run) -> Traffic:
    """Count what all clients of a recorded run send and receive in a round, from the record alone."""
    return round_floats(task_of(run), run.population.train)


def task_of(run: Run) -> Task:
    """Rebuild the task of a recorded run; raise a ValueError for user-defined code, which no record holds."""
    info, settings = run.info, run.info.experiment
    if "source" in settings.algorithm.settings:
        raise ValueError(f"The method of {info.key} is the user's own, {settings.algorithm.name}: no record holds it.")
    algorithm = build("algorithm", settings.algorithm.model_dump())
    first = _recipe(run, widest(info.networks), settings.feature_dim)
    width = algorithm.auxiliary_dim(settings.feature_dim)
    second = _recipe(run, (settings.model_extra or {}).get("auxiliary"), width) if algorithm.auxiliary else None
    with seeded(settings.seed, 0, 0, "template"):
        head = first().head
    return Task(
        algorithm=algorithm,
        classes=tuple(info.classes),
        feature_dim=settings.feature_dim,
        rounds=settings.rounds,
        seed=settings.seed,
        input=info.input,
        shared_network=second or (None if algorithm.heterogeneous else first),
        head_bias=any(name.rpartition(".")[2] == "bias" for name, _ in head.named_parameters()),
        trunks=tuple(
            dict.fromkeys(Trunk(*trunk.identity) for network in info.networks if (trunk := info.trunk(network)))
        ),
    )


def _recipe(run: Run, network: Any, width: int) -> Recipe:
    trunk = run.info.trunk(network)
    if trunk is None and not isinstance(network, str):
        raise ValueError(f"A network of {run.info.key} is the user's own, {network['name']}: no record holds it.")
    info = run.info
    if info.input is None:
        raise ValueError(f"The record of {info.key} does not hold the shape of a sample.")
    name = network if isinstance(network, str) else network["name"]
    own = Trunk(*trunk.identity) if trunk else None
    return Recipe(name, info.input.network_shape, width, len(info.classes), trunk=own)


def _written(slots: Iterable[Slot]) -> str:
    """Format the numbers of the first forms: symbolic shapes as products, tensors of known size by group."""
    symbols = Counter("·".join(map(str, shape)) for _, shape in _shapes(slots) if _has_symbol(shape))
    groups = ["1" if size == 1 else name for name, size in _groups(slots).items()]
    products = [term if count == 1 else f"{count}·{term}" for term, count in symbols.items()]
    return " + ".join([*groups, *products]) or "0"


def _groups(slots: Iterable[Slot]) -> dict[str, int]:
    """Sum tensors of known size by the first part of their names; |model.features| if no head is among them."""
    sizes: Counter[str] = Counter()
    seconds: dict[str, set[str]] = {}
    for name, shape in _shapes(slots):
        if not _has_symbol(shape):
            first, _, rest = name.partition(".")
            sizes[first] += prod(int(size) for size in shape)
            seconds.setdefault(first, set()).add(rest.split(".")[0])
    features = {name for name, groups in seconds.items() if groups == {"features"}}
    return {f"|{name}.features|" if name in features else f"|{name}|": size for name, size in sizes.items()}


def _shapes(slots: Iterable[Slot]) -> list[tuple[str, tuple[Size, ...]]]:
    fields = [item for slot in slots for item in slot[0].items()]
    return [(name, tensor.shape) for name, tensor in fields if tensor.dtype.is_floating_point]


def _has_symbol(shape: tuple[Size, ...]) -> bool:
    return any(isinstance(size, str) for size in shape)
