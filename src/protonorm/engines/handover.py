"""Exchange between a driver and its workers: the simulation as plain data and arrays, replies and errors.

Workers on the same machine memory-map arrays from files; an array that is already memory-mapped is not copied.
"""

import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from importlib import import_module
from mmap import mmap
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.config.components import build, describe, registered_name
from protonorm.core import own_code
from protonorm.core.own_code import importable_torchvision, is_installed
from protonorm.core.own_failures import runtime_failure
from protonorm.core.task import Counts, Reply, Task
from protonorm.core.training import Training
from protonorm.core.types import InputSpec
from protonorm.data.dataset import Dataset
from protonorm.data.partitions import Parts
from protonorm.errors import Diverged, Failed
from protonorm.federation.population import SimulatedPopulation
from protonorm.files import make_folder, replace
from protonorm.models.choose import Recipe
from protonorm.tensors import Tensors

BY_SIGNAL = "was ended by signal"

Refer = Callable[[Any], dict[str, str]]  # from a class or function to its location as plain data
Resolve = Callable[[dict[str, str]], Any]  # the inverse of Refer

BYTES = "latin-1"  # maps every byte to a character, so that any encoding is preserved

# Errors that a worker sends by name, so that the parent can raise the same type.
NAMED: dict[type[Exception], str] = {Diverged: "diverged", ValueError: "refused", OSError: "file", Failed: "failed"}


def obstacle(task: Task, population: SimulatedPopulation) -> str | None:
    """Return why a simulation cannot leave this process, or None if it can."""
    recipes = [*population.networks, *([task.shared_network] if isinstance(task.shared_network, Recipe) else [])]
    own: list[Any] = [recipe.network for recipe in recipes if not isinstance(recipe.network, str)]
    if registered_name("algorithm", task.algorithm) is None:
        own.append(type(task.algorithm))
        if not is_dataclass(task.algorithm) or not _is_plain(asdict(task.algorithm)):
            return f"{type(task.algorithm).__name__} is not a dataclass with plain fields"
    return next(filter(None, map(own_code.obstacle, own)), None)


def hand_over(task: Task, population: SimulatedPopulation, folder: Path) -> dict[str, Any]:
    """Write the arrays into a folder, and return the rest as plain data."""
    arrays = {name: place(array, folder / f"{name}.npy") for name, array in arrays_of(population).items()}
    return tell(task, population) | {"arrays": arrays, "path": sys.path}


def take_over(told: dict[str, Any]) -> tuple[Task, SimulatedPopulation]:
    """Build the simulation of `hand_over` in a worker, with memory-mapped arrays."""
    sys.path[:] = told["path"]
    return rebuild(told, {name: take(array) for name, array in told["arrays"].items()})


def arrays_of(population: SimulatedPopulation) -> dict[str, NDArray[Any]]:
    """Return the arrays of a simulation by name."""
    dataset, parts = population.dataset, population.parts
    return {"inputs": dataset.inputs, "labels": dataset.labels, "index": parts.index, "cuts": parts.cuts}


def tell(task: Task, population: SimulatedPopulation, refer: Refer = own_code.reference) -> dict[str, Any]:
    """Return a simulation without its arrays as plain data; `refer` locates user code."""
    dataset, shared, method = population.dataset, task.shared_network, task.algorithm
    named = registered_name("algorithm", method) is not None
    assert named or is_dataclass(method)  # checked by `obstacle`
    settings = ("classes", "feature_dim", "rounds", "seed", "head_bias", "server_lr", "server_batch_size", "combine")
    return {
        "dataset": {"name": dataset.name, "classes": dataset.classes, "vocabulary": dataset.vocabulary},
        "algorithm": describe("algorithm", method) if named else {"own": refer(type(method)), "fields": asdict(method)},
        "task": {name: getattr(task, name) for name in settings},
        "input": task.input and task.input.describe(),
        "shared_network": _tell_recipe(shared, refer) if isinstance(shared, Recipe) else None,
        "networks": [_tell_recipe(recipe, refer) for recipe in population.networks],
        "training": population.training.model_dump(mode="json"),
        "client_names": population.client_names,
    }


def rebuild(
    told: dict[str, Any], arrays: Mapping[str, NDArray[Any]], resolve: Resolve = own_code.resolve
) -> tuple[Task, SimulatedPopulation]:
    """Build a simulation from its arrays and the data of `tell`; `resolve` loads user code."""
    about, shared = told["dataset"], told["shared_network"]
    classes, vocabulary = tuple(about["classes"]), about["vocabulary"]
    dataset = Dataset(about["name"], arrays["inputs"], arrays["labels"], classes, vocabulary=vocabulary)
    own = told["algorithm"].get("own")
    task = Task(
        algorithm=resolve(own)(**told["algorithm"]["fields"]) if own else build("algorithm", told["algorithm"]),
        input=InputSpec(**told["input"]) if told["input"] else None,
        shared_network=_make_recipe(shared, resolve) if shared else None,
        **told["task"] | {"classes": tuple(told["task"]["classes"])},
    )
    networks = [_make_recipe(recipe, resolve) for recipe in told["networks"]]
    parts, names = Parts(arrays["index"], arrays["cuts"]), told["client_names"]
    return task, SimulatedPopulation(task, dataset, parts, networks, Training(**told["training"]), names)


def place(array: NDArray[Any], path: Path) -> dict[str, Any]:
    """Return the file of an array: the memory-mapped one, or else a new file at `path`."""
    if origin := mapped_from(array):
        return {"file": origin[0], "type": array.dtype.str, "shape": array.shape, "offset": origin[1]}
    np.save(path, array, allow_pickle=False)
    return {"file": str(path)}


def mapped_from(array: NDArray[Any]) -> tuple[str, int] | None:
    """Return file and offset of a memory-mapped array; None if it is not mapped, or the file no longer exists."""
    origin = array if isinstance(getattr(array, "base", None), mmap) else array.base  # of a slice: the whole array
    if isinstance(origin, np.memmap) and origin.mode == "r" and array.flags.c_contiguous:
        file = Path(str(origin.filename))
        if file.exists():
            return str(file), origin.offset + array.ctypes.data - origin.ctypes.data
    return None


def take(told: dict[str, Any]) -> NDArray[Any]:
    """Memory-map the array that `place` described."""
    if "offset" not in told:
        mapped: NDArray[Any] = np.load(told["file"], mmap_mode="r", allow_pickle=False)
        return mapped
    return np.memmap(told["file"], told["type"], "r", told["offset"], tuple(told["shape"]))


def _tell_recipe(recipe: Recipe, refer: Refer) -> dict[str, Any]:
    network = recipe.network if isinstance(recipe.network, str) else refer(recipe.network)
    return {**asdict(recipe), "network": network}


def _make_recipe(told: dict[str, Any], resolve: Resolve) -> Recipe:
    network = told["network"] if isinstance(told["network"], str) else resolve(told["network"])
    return Recipe(**told | {"network": network, "shape": tuple(told["shape"])})


def _is_plain(fields: dict[str, Any]) -> bool:
    with suppress(TypeError, ValueError):
        return bool(json.loads(json.dumps(fields)) == fields)
    return False


def refer_by_text(thing: Any) -> dict[str, str]:
    """Return the location of a class or function: an installed module, or a file with its text."""
    place = own_code.reference(thing)
    if is_installed(thing):
        return {"module": place["module"], "name": place["name"]}
    path = Path(place["file"])
    own_code.refuse_own_code(path)
    return {"name": place["name"], "file": str(path), "text": path.read_bytes().decode(BYTES)}


class NodeCode:
    """User code on a node, received as the text of its file and imported under the same rules."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, str] = {}  # from the local path to the path on the driver

    def resolve(self, place: dict[str, str]) -> Any:
        """Load the class or function that `refer_by_text` located."""
        try:
            with importable_torchvision():
                module = self._load(place) if "text" in place else import_module(place["module"])
        except ImportError as error:
            raise ValueError(f"{place['module']} cannot be imported on this node: {error}.") from error
        return attrgetter(place["name"])(module)

    def translate(self, text: str) -> str:
        """Replace local paths in a text by those on the driver."""
        for here, there in self._files.items():
            text = text.replace(here, there)
        return text

    def _load(self, place: dict[str, str]) -> Any:
        content = place["text"].encode(BYTES)
        path = self._folder / hashlib.sha256(content).hexdigest()[:16] / Path(place["file"]).name
        make_folder(path.parent)
        if not path.exists():
            replace(path, content)
        self._files[str(path)] = place["file"]
        with suppress(OSError):
            self._files[str(path.resolve())] = place["file"]
        try:
            return own_code.load_file(path)
        except ValueError as error:
            raise ValueError(self.translate(str(error))) from error


def tell_error(error: Exception) -> dict[str, str]:
    """Return a worker's error as the header of a frame, with its kind if the parent can raise the same type."""
    text = runtime_failure(error)  # set if user code failed
    for kind, name in NAMED.items():
        if isinstance(error, kind):
            return {"error": name, "text": text or str(error)}
    return {"error": NAMED[Failed] if text else "unexpected", "text": text or traceback.format_exc()}


def raise_error(header: dict[str, Any]) -> None:
    """Raise the error of a worker from the header of its frame."""
    for kind, name in NAMED.items():
        if header["error"] == name:
            raise kind(str(header.get("text")))
    raise RuntimeError(f"A worker failed:\n{header.get('text')}")


def how_it_ended(code: int) -> str:
    """Return how a process ended, by its exit code."""
    return f"{BY_SIGNAL} {-code}, perhaps for lack of memory" if code < 0 else f"ended with code {code}"


def read_answer(verb: str, id: int, header: dict[str, Any], tensors: Tensors) -> Reply | Counts:
    """Build a client's reply to a request to train, or its counts, from a worker's frame."""
    if verb == "evaluate":
        return Counts(id, tensors)
    metrics = {str(name): float(value) for name, value in header["metrics"].items()}
    return Reply(id, tensors, metrics, float(header["seconds"]))
