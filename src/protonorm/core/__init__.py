"""Base types of the package: models, samples, clients, servers, algorithms, tasks. Imports no other subpackage."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protonorm.core.algorithm import Additive, Algorithm, Step
    from protonorm.core.combine import Contribution, Sums
    from protonorm.core.model import NetworkRecipe, SplitModel, keep_trained
    from protonorm.core.node import Client, Server
    from protonorm.core.randomness import SERVER, one_thread, seeded
    from protonorm.core.samples import Samples
    from protonorm.core.schema import Field, Form, Schema, Slot, optional, slots_like
    from protonorm.core.task import Counts, Lost, Order, Reply, Task
    from protonorm.core.types import InputSpec

# Modules of the exported names, imported on first use: registry, types and progress must work without torch.
_PLACES = {
    **dict.fromkeys(("Additive", "Algorithm", "Step"), "algorithm"),
    **dict.fromkeys(("Contribution", "Sums"), "combine"),
    **dict.fromkeys(("NetworkRecipe", "SplitModel", "keep_trained"), "model"),
    **dict.fromkeys(("Client", "Server"), "node"),
    **dict.fromkeys(("SERVER", "one_thread", "seeded"), "randomness"),
    **dict.fromkeys(("Samples",), "samples"),
    **dict.fromkeys(("Field", "Form", "Schema", "Slot", "optional", "slots_like"), "schema"),
    **dict.fromkeys(("Counts", "Lost", "Order", "Reply", "Task"), "task"),
    "InputSpec": "types",
}

__all__ = [
    "SERVER", "Additive", "Algorithm", "Client", "Contribution", "Counts", "Field", "Form", "InputSpec", "Lost",
    "NetworkRecipe", "Order", "Reply", "Samples", "Schema", "Server", "Slot", "SplitModel", "Step", "Sums", "Task",
    "keep_trained", "one_thread", "optional", "seeded", "slots_like",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'protonorm.core' has no attribute {name!r}")
    return getattr(import_module(f"protonorm.core.{_PLACES[name]}"), name)
