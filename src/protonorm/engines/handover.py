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
from protonorm.core.model import Trunk
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

FEATURES = "features-"  # before the digest of a trunk, in the name of an array
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
    own += [] if isinstance(population.training.optimiser, str) else [population.training.optimiser]
    return next(filter(None, map(own_code.obstacle, own)), None)


def hand_over(task: Task, population: SimulatedPopulation, folder: Path) -> dict[str, Any]:
    """Write the arrays into a folder, and return the rest as plain data."""
    arrays = {name: array_location(array, folder / f"{name}.npy") for name, array in arrays_of(population).items()}
    return describe_run(task, population) | {"arrays": arrays, "path": sys.path}


def take_over(setup: dict[str, Any]) -> tuple[Task, SimulatedPopulation]:
    """Build the simulation of `hand_over` in a worker, with memory-mapped arrays."""
    sys.path[:] = setup["path"]
    return rebuild(setup, {name: map_array(array) for name, array in setup["arrays"].items()})


def arrays_of(population: SimulatedPopulation) -> dict[str, NDArray[Any]]:
    """Return the arrays of a simulation by name."""
    dataset, parts = population.dataset, population.parts
    arrays = {"inputs": dataset.inputs, "labels": dataset.labels, "index": parts.index, "cuts": parts.cuts}
    arrays |= {} if parts.validating is None else {"held": parts.validating}
    arrays |= {} if parts.common is None else {"common": parts.common}
    return arrays | {f"{FEATURES}{digest}": features for digest, features in population.features.items()}


def describe_run(task: Task, population: SimulatedPopulation, refer: Refer = own_code.reference) -> dict[str, Any]:
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
        "trunks": [trunk._asdict() for trunk in task.trunks],
        "shared_network": _describe_recipe(shared, refer) if isinstance(shared, Recipe) else None,
        "networks": [_describe_recipe(recipe, refer) for recipe in population.networks],
        "training": _describe_training(population.training, refer),
        "client_names": population.client_names,
    }


def rebuild(
    setup: dict[str, Any], arrays: Mapping[str, NDArray[Any]], resolve: Resolve = own_code.resolve
) -> tuple[Task, SimulatedPopulation]:
    """Build a simulation from its arrays and the data of `describe_run`; `resolve` loads user code."""
    data, shared = setup["dataset"], setup["shared_network"]
    classes, vocabulary = tuple(data["classes"]), data["vocabulary"]
    dataset = Dataset(data["name"], arrays["inputs"], arrays["labels"], classes, vocabulary=vocabulary)
    own = setup["algorithm"].get("own")
    task = Task(
        algorithm=resolve(own)(**setup["algorithm"]["fields"]) if own else build("algorithm", setup["algorithm"]),
        input=InputSpec(**setup["input"]) if setup["input"] else None,
        shared_network=_make_recipe(shared, resolve) if shared else None,
        trunks=tuple(Trunk(**trunk) for trunk in setup["trunks"]),
        **setup["task"] | {"classes": tuple(setup["task"]["classes"])},
    )
    networks = [_make_recipe(recipe, resolve) for recipe in setup["networks"]]
    parts = Parts(arrays["index"], arrays["cuts"], arrays.get("held"), arrays.get("common"))
    names = setup["client_names"]
    features: Any = {name[len(FEATURES) :]: array for name, array in arrays.items() if name.startswith(FEATURES)}
    optimiser = setup["training"]["optimiser"]
    optimiser = optimiser if isinstance(optimiser, str) else resolve(optimiser)
    training = Training(**setup["training"] | {"optimiser": optimiser})
    return task, SimulatedPopulation(task, dataset, parts, networks, training, names, features=features)


def array_location(array: NDArray[Any], path: Path) -> dict[str, Any]:
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


def map_array(location: dict[str, Any]) -> NDArray[Any]:
    """Memory-map the array that `array_location` described."""
    if "offset" not in location:
        mapped: NDArray[Any] = np.load(location["file"], mmap_mode="r", allow_pickle=False)
        return mapped
    return np.memmap(location["file"], location["type"], "r", location["offset"], tuple(location["shape"]))


def _describe_recipe(recipe: Recipe, refer: Refer) -> dict[str, Any]:
    network = recipe.network if isinstance(recipe.network, str) else refer(recipe.network)
    return {**asdict(recipe), "network": network, "trunk": recipe.trunk and recipe.trunk._asdict()}


def _describe_training(training: Training, refer: Refer) -> dict[str, Any]:
    plain, optimiser = training.model_dump(mode="json"), training.optimiser
    return plain if isinstance(optimiser, str) else plain | {"optimiser": refer(optimiser)}


def _make_recipe(fields: dict[str, Any], resolve: Resolve) -> Recipe:
    network = fields["network"] if isinstance(fields["network"], str) else resolve(fields["network"])
    trunk = Trunk(**fields["trunk"]) if fields["trunk"] else None
    return Recipe(**fields | {"network": network, "shape": tuple(fields["shape"]), "trunk": trunk})


def _is_plain(fields: dict[str, Any]) -> bool:
    with suppress(TypeError, ValueError):
        return bool(json.loads(json.dumps(fields)) == fields)
    return False


def refer_by_text(obj: Any) -> dict[str, str]:
    """Return the location of a class or function: an installed module, or a file with its text."""
    location = own_code.reference(obj)
    if is_installed(obj):
        return {"module": location["module"], "name": location["name"]}
    path = Path(location["file"])
    own_code.refuse_own_code(path)
    return {"name": location["name"], "file": str(path), "text": path.read_bytes().decode(BYTES)}


class NodeCode:
    """User code on a node, received as the text of its file and imported under the same rules."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, str] = {}  # from the local path to the path on the driver

    def resolve(self, location: dict[str, str]) -> Any:
        """Load the class or function that `refer_by_text` located."""
        try:
            with importable_torchvision():
                module = self._load(location) if "text" in location else import_module(location["module"])
        except ImportError as error:
            raise ValueError(f"{location['module']} cannot be imported on this node: {error}.") from error
        return attrgetter(location["name"])(module)

    def translate(self, text: str) -> str:
        """Replace local paths in a text by those on the driver."""
        for local, remote in self._files.items():
            text = text.replace(local, remote)
        return text

    def _load(self, location: dict[str, str]) -> Any:
        content = location["text"].encode(BYTES)
        path = self._folder / hashlib.sha256(content).hexdigest()[:16] / Path(location["file"]).name
        make_folder(path.parent)
        if not path.exists():
            replace(path, content)
        self._files[str(path)] = location["file"]
        with suppress(OSError):
            self._files[str(path.resolve())] = location["file"]
        try:
            return own_code.load_file(path)
        except ValueError as error:
            raise ValueError(self.translate(str(error))) from error


def error_header(error: Exception) -> dict[str, str]:
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


def exit_text(code: int) -> str:
    """Return how a process ended, by its exit code."""
    return f"{BY_SIGNAL} {-code}, perhaps for lack of memory" if code < 0 else f"ended with code {code}"


def read_answer(verb: str, id: int, header: dict[str, Any], tensors: Tensors) -> Reply | Counts:
    """Build a client's reply to a request to train, or its counts, from a worker's frame."""
    if verb == "evaluate":
        return Counts(id, tensors)
    metrics = {str(name): float(value) for name, value in header["metrics"].items()}
    return Reply(id, tensors, metrics, float(header["seconds"]))
