"""What a worker needs of a simulation: plain data, and arrays in files that all workers map, not copy.

An array that is mapped from a file already is not written again: workers map the same file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, is_dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.config.components import build, describe, registered_name
from protonorm.core import own_code
from protonorm.core.algorithm import Algorithm
from protonorm.core.task import InputSpec, Task
from protonorm.core.training import LrSchedule
from protonorm.data.dataset import Dataset
from protonorm.data.partitions.base import Parts
from protonorm.federation.population import SimulatedPopulation, Training
from protonorm.models.choose import Recipe

ARRAYS = ("inputs", "labels", "index", "cuts")


def obstacle(task: Task, population: SimulatedPopulation) -> str | None:
    """Say why a simulation cannot leave this process; None if it can."""
    recipes = [*population.networks, *([task.shared_network] if isinstance(task.shared_network, Recipe) else [])]
    own: list[Any] = [recipe.network for recipe in recipes if not isinstance(recipe.network, str)]
    algorithm = task.algorithm
    if registered_name("algorithm", algorithm) is None:
        own.append(type(algorithm))
        if not is_dataclass(algorithm) or not _is_plain(asdict(algorithm)):
            return f"{type(algorithm).__name__} is not a dataclass with plain fields"
    return next((reason for thing in own if (reason := own_code.obstacle(thing))), None)


def hand_over(task: Task, population: SimulatedPopulation, folder: Path) -> dict[str, Any]:
    """Write the arrays into a folder, and tell the rest in plain data."""
    dataset, parts = population.dataset, population.parts
    arrays = {"inputs": dataset.inputs, "labels": dataset.labels, "index": parts.index, "cuts": parts.cuts}
    settings = ("classes", "feature_dim", "rounds", "seed", "head_bias", "server_lr", "server_batch_size")
    return {
        "arrays": {name: place(arrays[name], folder / f"{name}.npy") for name in ARRAYS},
        "path": sys.path,
        "dataset": {"name": dataset.name, "classes": dataset.classes, "vocabulary": dataset.vocabulary},
        "algorithm": _tell_algorithm(task.algorithm),
        "task": {name: getattr(task, name) for name in settings},
        "input": task.input,
        "shared_network": _tell_recipe(task.shared_network) if isinstance(task.shared_network, Recipe) else None,
        "networks": [_tell_recipe(recipe) for recipe in population.networks],
        "training": asdict(population.training),
        "client_names": population.client_names,
    }


def take_over(told: dict[str, Any]) -> tuple[Task, SimulatedPopulation]:
    """Build in a worker what `hand_over` told; the arrays are mapped."""
    sys.path[:] = told["path"]
    inputs, labels, index, cuts = (take(told["arrays"][name]) for name in ARRAYS)
    about = told["dataset"]
    dataset = Dataset(about["name"], inputs, labels, tuple(about["classes"]), vocabulary=about["vocabulary"])
    shared = told["shared_network"]
    task = Task(
        algorithm=_make_algorithm(told["algorithm"]),
        input=InputSpec(tuple(told["input"][0]), *told["input"][1:]) if told["input"] else None,
        shared_network=_make_recipe(shared) if shared else None,
        **told["task"] | {"classes": tuple(told["task"]["classes"])},
    )
    networks = [_make_recipe(recipe) for recipe in told["networks"]]
    training: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told["training"].items()
    }
    training["lr_schedule"] = LrSchedule(**training["lr_schedule"])
    parts, names = Parts(index, cuts), told["client_names"]
    return task, SimulatedPopulation(task, dataset, parts, networks, Training(**training), names)


def place(array: NDArray[Any], path: Path) -> dict[str, Any]:
    """Say in which file an array is: the one it is mapped from, or else a new one."""
    origin = array if isinstance(getattr(array, "base", None), mmap) else array.base  # a slice's base is the whole
    if isinstance(origin, np.memmap) and origin.mode == "r" and array.flags.c_contiguous:
        file = Path(str(origin.filename))
        if file.exists():
            offset = origin.offset + array.ctypes.data - origin.ctypes.data
            return {"file": str(file), "type": array.dtype.str, "shape": array.shape, "offset": offset}
    np.save(path, array, allow_pickle=False)
    return {"file": str(path)}


def take(told: dict[str, Any]) -> NDArray[Any]:
    """Map what `place` told."""
    if "offset" not in told:
        mapped: NDArray[Any] = np.load(told["file"], mmap_mode="r", allow_pickle=False)
        return mapped
    return np.memmap(told["file"], told["type"], "r", told["offset"], tuple(told["shape"]))


def _tell_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    if registered_name("algorithm", algorithm) is not None:
        return describe("algorithm", algorithm)
    assert is_dataclass(algorithm)  # `obstacle` has looked
    return {"own": own_code.reference(type(algorithm)), "fields": asdict(algorithm)}


def _make_algorithm(told: dict[str, Any]) -> Algorithm:
    made = own_code.resolve(told["own"])(**told["fields"]) if "own" in told else build("algorithm", told)
    assert isinstance(made, Algorithm)
    return made


def _tell_recipe(recipe: Recipe) -> dict[str, Any]:
    network = recipe.network if isinstance(recipe.network, str) else own_code.reference(recipe.network)
    return {**asdict(recipe), "network": network}


def _make_recipe(told: dict[str, Any]) -> Recipe:
    network = told["network"] if isinstance(told["network"], str) else own_code.resolve(told["network"])
    return Recipe(**told | {"network": network, "shape": tuple(told["shape"])})


def _is_plain(fields: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(fields)) == fields)
    except (TypeError, ValueError):
        return False
