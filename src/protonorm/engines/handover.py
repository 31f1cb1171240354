"""What a worker needs of an experiment: plain data, and arrays in files that all workers map, not copy.

An array that is mapped from a file already is not written again: workers map the same file.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from dataclasses import asdict
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.algorithms import ALGORITHMS
from protonorm.components import describe, load_file
from protonorm.data.dataset import Dataset
from protonorm.data.partition import Part
from protonorm.experiment import Experiment
from protonorm.models.choose import networks
from protonorm.setup import Setup

ARRAYS = ("inputs", "labels", "index", "cuts")


def obstacle(experiment: Experiment) -> str | None:
    """Say why an experiment cannot leave this process; None if it can."""
    own: list[Any] = [item for item in networks(experiment.models) if not isinstance(item, str)]
    algorithm: Any = experiment.algorithm
    if _is_own(algorithm):
        own.append(type(algorithm))
        if not hasattr(algorithm, "__dataclass_fields__") or not _is_plain(asdict(algorithm)):
            return f"{type(algorithm).__name__} is not a dataclass with plain fields"
    for thing in own:
        if thing.__module__ == "__main__":
            return f"{thing.__qualname__} is defined in the main script; put it into a file of its own to import it"
        if "<" in thing.__qualname__:
            return f"{thing.__qualname__} is defined inside a function; put it at the top of a file"
    return None


def hand_over(setup: Setup, folder: Path) -> dict[str, Any]:
    """Write the arrays into a folder, and tell the rest in plain data."""
    experiment = setup.experiment
    parts = [half for part in setup.parts for half in (part.train, part.test)]
    arrays = {
        "inputs": setup.dataset.inputs,
        "labels": setup.dataset.labels,
        "index": np.concatenate(parts),
        "cuts": np.cumsum([0, *map(len, parts)]),
    }
    settings = experiment.model_dump(mode="json", exclude={"algorithm", "dataset", "partition", "models"})
    algorithm = experiment.algorithm
    return {
        "arrays": {name: place(arrays[name], folder / f"{name}.npy") for name in ARRAYS},
        "path": sys.path,
        "data": {"name": setup.dataset.name, "classes": setup.dataset.classes},
        "settings": settings,
        "algorithm": (
            {"own": _reference(type(algorithm)), "fields": asdict(algorithm)}
            if _is_own(algorithm)
            else describe(ALGORITHMS, algorithm)
        ),
        "models": (
            experiment.models
            if isinstance(experiment.models, str)
            else [item if isinstance(item, str) else _reference(item) for item in experiment.models]
        ),
    }


def take_over(told: dict[str, Any]) -> Setup:
    """Build in a worker what `hand_over` told; the arrays are mapped."""
    sys.path[:] = told["path"]
    inputs, labels, index, cuts = (take(told["arrays"][name]) for name in ARRAYS)
    dataset = Dataset(told["data"]["name"], inputs, labels, tuple(told["data"]["classes"]))
    halves = [index[start:end] for start, end in pairwise(cuts)]
    parts = [Part(*pair) for pair in zip(halves[::2], halves[1::2], strict=True)]
    algorithm = told["algorithm"]
    if "own" in algorithm:
        algorithm = _resolve(algorithm["own"])(**algorithm["fields"])
    models = told["models"]
    if not isinstance(models, str):
        models = [item if isinstance(item, str) else _resolve(item) for item in models]
    experiment = Experiment.of({**told["settings"], "algorithm": algorithm, "dataset": dataset, "models": models})
    return Setup(experiment, dataset, parts)


def place(array: NDArray[Any], path: Path) -> dict[str, Any]:
    """Say in which file an array is: the one it is mapped from, or else a new one."""
    origin = (
        array if isinstance(getattr(array, "base", None), mmap) else array.base
    )  # a slice has the whole as its base
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


def _is_own(algorithm: Any) -> bool:
    return ":" in str(describe(ALGORITHMS, algorithm)["name"])


def _is_plain(fields: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(fields)) == fields)
    except (TypeError, ValueError):
        return False


def _reference(thing: Any) -> dict[str, str]:
    return {"module": thing.__module__, "name": thing.__qualname__, "file": inspect.getfile(thing)}


def _resolve(reference: dict[str, str]) -> Any:
    try:
        module = importlib.import_module(reference["module"])
    except ImportError:
        module = load_file(Path(reference["file"]))
    found: Any = module
    for name in reference["name"].split("."):
        found = getattr(found, name)
    return found
