"""Clients with data of their own, and the simulation that has the same data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import protonorm as pn
from protonorm.config.components import describe
from protonorm.core import Task
from protonorm.data.partitions import ClientIndex
from protonorm.deployment.agreement import OF_TASK, Agreement
from protonorm.deployment.node import Node
from protonorm.deployment.site import OwnSite, open_store
from protonorm.federation.population import SimulatedPopulation
from protonorm.models.choose import Recipe
from tests.support import pictures

NAMES = ("berlin", "kyoto", "lima")
LABELS = ([0, 1, 2] * 8, [0, 1] * 10, [2, 1, 0, 0] * 6)


def write_clients(folder: Path) -> Path:
    """Write a file of pictures for each of three clients; the second has no sample of the last class."""
    folder.mkdir(exist_ok=True)
    for seed, (name, labels) in enumerate(zip(NAMES, LABELS, strict=True)):
        data = pictures(labels, 3, side=16, seed=seed)
        np.savez(folder / f"{name}.npz", images=data.inputs, labels=data.labels, classes=np.array(data.classes))
    return folder


def simulated(folder: Path, **settings: Any) -> pn.Experiment:
    """Make the experiment that has all clients' data in one place."""
    usual = {"dataset": f"clients:{folder}", "clients": 3, "rounds": 3, "batch_size": 4, "feature_dim": 8, "lr": 0.05}
    return pn.Experiment.of(usual | settings)


def agreement_of(task: Task, evaluated: Sequence[str] = ("test",), evaluate_every: int = 1, **more: Any) -> Agreement:
    """Write a simulation's task down as the terms of a federation."""
    shared = task.shared_network
    terms = {name: getattr(task, name) for name in OF_TASK} | {
        "format": 1,
        "algorithm": describe("algorithm", task.algorithm),
        "classes": list(task.classes),
        "input": task.input.describe() if shared is not None and task.input is not None else None,
        "shared_network": None if shared is None else shared.name,
        "evaluated": list(evaluated),
        "evaluate_every": evaluate_every,
        "trunks": [trunk._asdict() for trunk in task.trunks],
        "shared_trunk": shared.trunk._asdict() if isinstance(shared, Recipe) and shared.trunk else None,
    }
    return Agreement.checked(terms | more, "The agreement")


def own_sites(task: Task, population: SimulatedPopulation) -> list[OwnSite]:
    """Create a site for each client of a simulation, with a copy of its samples and of no others."""
    found = []
    for id in range(len(population)):
        part, data = population.parts[id], population.dataset
        rows, cut = np.concatenate(part), len(part.train)
        own = pn.Dataset(data.name, data.inputs[rows], data.labels[rows], data.classes, vocabulary=data.vocabulary)
        index = ClientIndex(np.arange(cut), np.arange(cut, len(rows)))
        found.append(OwnSite(task, id, own, index, population.recipe(id), population.training))
    return found


def make_nodes(agreement: Agreement, sites: Sequence[OwnSite], folder: Path) -> dict[int, Node]:
    """Create a node for each site, with a folder of its own for its states."""
    found = {}
    for site in sites:
        found[site.id] = Node(agreement, site, open_store(folder / str(site.id), agreement), "classes")
    return found
