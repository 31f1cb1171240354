"""What a worker needs of a simulation: plain data, and arrays in files that all workers map, not copy.

An array that is mapped from a file already is not written again: workers map the same file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
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

Refer = Callable[[Any], dict[str, str]]  # from a class or function to where it is, in plain data
Resolve = Callable[[dict[str, str]], Any]  # and back


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
    arrays = {name: place(array, folder / f"{name}.npy") for name, array in arrays_of(population).items()}
    return tell(task, population) | {"arrays": arrays, "path": sys.path}


def take_over(told: dict[str, Any]) -> tuple[Task, SimulatedPopulation]:
    """Build in a worker what `hand_over` told; the arrays are mapped."""
    sys.path[:] = told["path"]
    return rebuild(told, {name: take(told["arrays"][name]) for name in ARRAYS})


def arrays_of(population: SimulatedPopulation) -> dict[str, NDArray[Any]]:
    """Name the arrays of a simulation."""
    dataset, parts = population.dataset, population.parts
    found = (dataset.inputs, dataset.labels, parts.index, parts.cuts)
    return dict(zip(ARRAYS, found, strict=True))


def tell(task: Task, population: SimulatedPopulation, refer: Refer = own_code.reference) -> dict[str, Any]:
    """Tell all of a simulation but its arrays in plain data; `refer` says where a user's own code is."""
    dataset, shared = population.dataset, task.shared_network
    settings = ("classes", "feature_dim", "rounds", "seed", "head_bias", "server_lr", "server_batch_size")
    return {
        "dataset": {"name": dataset.name, "classes": dataset.classes, "vocabulary": dataset.vocabulary},
        "algorithm": _tell_algorithm(task.algorithm, refer),
        "task": {name: getattr(task, name) for name in settings},
        "input": task.input,
        "shared_network": _tell_recipe(shared, refer) if isinstance(shared, Recipe) else None,
        "networks": [_tell_recipe(recipe, refer) for recipe in population.networks],
        "training": asdict(population.training),
        "client_names": population.client_names,
    }


def rebuild(
    told: dict[str, Any], arrays: Mapping[str, NDArray[Any]], resolve: Resolve = own_code.resolve
) -> tuple[Task, SimulatedPopulation]:
    """Build a simulation from its arrays and what `tell` told; `resolve` finds a user's own code."""
    inputs, labels, index, cuts = (arrays[name] for name in ARRAYS)
    about = told["dataset"]
    dataset = Dataset(about["name"], inputs, labels, tuple(about["classes"]), vocabulary=about["vocabulary"])
    shared = told["shared_network"]
    task = Task(
        algorithm=_make_algorithm(told["algorithm"], resolve),
        input=InputSpec(tuple(told["input"][0]), *told["input"][1:]) if told["input"] else None,
        shared_network=_make_recipe(shared, resolve) if shared else None,
        **told["task"] | {"classes": tuple(told["task"]["classes"])},
    )
    networks = [_make_recipe(recipe, resolve) for recipe in told["networks"]]
    training: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told["training"].items()
    }
    training["lr_schedule"] = LrSchedule(**training["lr_schedule"])
    parts, names = Parts(index, cuts), told["client_names"]
    return task, SimulatedPopulation(task, dataset, parts, networks, Training(**training), names)


def place(array: NDArray[Any], path: Path) -> dict[str, Any]:
    """Say in which file an array is: the one it is mapped from, or else a new one."""
    if found := mapped_from(array):
        return {"file": found[0], "type": array.dtype.str, "shape": array.shape, "offset": found[1]}
    np.save(path, array, allow_pickle=False)
    return {"file": str(path)}


def mapped_from(array: NDArray[Any]) -> tuple[str, int] | None:
    """Say in which file an array is, and where it begins; None if it is not mapped, or its file has gone."""
    origin = array if isinstance(getattr(array, "base", None), mmap) else array.base  # a slice's base is the whole
    if isinstance(origin, np.memmap) and origin.mode == "r" and array.flags.c_contiguous:
        file = Path(str(origin.filename))
        if file.exists():
            return str(file), origin.offset + array.ctypes.data - origin.ctypes.data
    return None


def take(told: dict[str, Any]) -> NDArray[Any]:
    """Map what `place` told."""
    if "offset" not in told:
        mapped: NDArray[Any] = np.load(told["file"], mmap_mode="r", allow_pickle=False)
        return mapped
    return np.memmap(told["file"], told["type"], "r", told["offset"], tuple(told["shape"]))


def _tell_algorithm(algorithm: Algorithm, refer: Refer) -> dict[str, Any]:
    if registered_name("algorithm", algorithm) is not None:
        return describe("algorithm", algorithm)
    assert is_dataclass(algorithm)  # `obstacle` has looked
    return {"own": refer(type(algorithm)), "fields": asdict(algorithm)}


def _make_algorithm(told: dict[str, Any], resolve: Resolve) -> Algorithm:
    made = resolve(told["own"])(**told["fields"]) if "own" in told else build("algorithm", told)
    assert isinstance(made, Algorithm)
    return made


def _tell_recipe(recipe: Recipe, refer: Refer) -> dict[str, Any]:
    network = recipe.network if isinstance(recipe.network, str) else refer(recipe.network)
    return {**asdict(recipe), "network": network}


def _make_recipe(told: dict[str, Any], resolve: Resolve) -> Recipe:
    network = told["network"] if isinstance(told["network"], str) else resolve(told["network"])
    return Recipe(**told | {"network": network, "shape": tuple(told["shape"])})


def _is_plain(fields: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(fields)) == fields)
    except (TypeError, ValueError):
        return False
