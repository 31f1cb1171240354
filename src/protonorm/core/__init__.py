"""The words everybody speaks: models, samples, nodes, algorithms, tasks. Nothing here imports another room."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protonorm.core.algorithm import Algorithm, Step
    from protonorm.core.model import NetworkRecipe, SplitModel
    from protonorm.core.node import Client, Server
    from protonorm.core.randomness import SERVER, one_thread, seeded
    from protonorm.core.samples import Samples
    from protonorm.core.schema import Field, Form, Schema, Slot, optional, slots_like
    from protonorm.core.task import Counts, InputSpec, Lost, Order, Reply, Task

# Where each name lives: looked up on first use, because registry, types and progress must do without torch.
_PLACES = {
    **dict.fromkeys(("Algorithm", "Step"), "algorithm"),
    **dict.fromkeys(("NetworkRecipe", "SplitModel"), "model"),
    **dict.fromkeys(("Client", "Server"), "node"),
    **dict.fromkeys(("SERVER", "one_thread", "seeded"), "randomness"),
    **dict.fromkeys(("Samples",), "samples"),
    **dict.fromkeys(("Field", "Form", "Schema", "Slot", "optional", "slots_like"), "schema"),
    **dict.fromkeys(("Counts", "InputSpec", "Lost", "Order", "Reply", "Task"), "task"),
}

__all__ = [
    "SERVER",
    "Algorithm",
    "Client",
    "Counts",
    "Field",
    "Form",
    "InputSpec",
    "Lost",
    "NetworkRecipe",
    "Order",
    "Reply",
    "Samples",
    "Schema",
    "Server",
    "Slot",
    "SplitModel",
    "Step",
    "Task",
    "one_thread",
    "optional",
    "seeded",
    "slots_like",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'protonorm.core' has no attribute {name!r}")
    return getattr(import_module(f"protonorm.core.{_PLACES[name]}"), name)
