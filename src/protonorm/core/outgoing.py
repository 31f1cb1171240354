"""Outgoing steps, which process a reply before it leaves the client. Does not need torch.

A step is a class with an entry in `OUTGOING`. The setting `protect` selects it: in a simulation that of the
experiment, in a deployment that of the client's owner. The server has no influence on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from protonorm.core.registry import Entry, find
from protonorm.core.settings import dataclass, validated
from protonorm.core.types import STRICT, Count, shown

if TYPE_CHECKING:
    from protonorm.core.node import Client
    from protonorm.core.task import Task
    from protonorm.tensors import Tensors

OUTGOING: dict[str, Entry] = {
    "none": Entry("protonorm.core.outgoing:Unchanged", "replies leave as they are"),
    "minimum_count": Entry("protonorm.core.outgoing:MinimumCount", "classes with few samples are not sent"),
}


class Outgoing(ABC):
    """Step between training and transport, applied last to a reply on the client's machine."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the step does not cover the replies of the task's method."""
        del task

    @abstractmethod
    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return the message to send, given the client's reply."""


@dataclass(frozen=True, config=STRICT)
class Unchanged(Outgoing):
    """Step that leaves replies unchanged."""

    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return the message unchanged."""
        return message


@dataclass(frozen=True, config=STRICT)
class MinimumCount(Outgoing):
    """Step that removes classes with fewer training samples than a minimum.

    The mean feature of a class with a single sample is that sample's feature.
    """

    least: Count = 5  # minimum number of training samples of a class that is sent

    def check(self, task: Task) -> None:
        """Raise ValueError for methods whose clients send anything but vectors by class."""
        fields = {name: field for slot in task.schema.up for form in slot for name, field in form.items()}
        if others := sorted(name for name, field in fields.items() if field.shape[:1] != ("K_i",)):
            raise ValueError(
                f"protect=minimum_count is for methods whose clients send vectors by class and nothing else, "
                f"but those of {type(task.algorithm).__name__} send {others[0]}."
            )

    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return the message with the rows of the classes that have enough samples."""
        if "classes" not in message:
            return message
        kept = client.train.class_counts(client.num_classes)[message["classes"]] >= self.least  # (K_i,)
        return {name: value[kept] for name, value in message.items()}


def make_outgoing(value: Any) -> Outgoing:
    """Create a step from a name or from a mapping of name and settings; return a step unchanged."""
    if isinstance(value, Outgoing):
        return value
    settings = dict(value) if isinstance(value, Mapping) else {"name": value}
    if not isinstance(name := settings.pop("name", None), str):
        raise ValueError(f"protect must be one of {', '.join(OUTGOING)}, got {shown(value)}.")
    step: Outgoing = validated(find(OUTGOING, name, "protection").load(), settings, f"protect {name}", "protect.")
    return step


def describe_outgoing(step: Outgoing) -> dict[str, Any]:
    """Return a JSON-compatible description of a step: its name and settings."""
    target = f"{type(step).__module__}:{type(step).__qualname__}"
    name = next((name for name, entry in OUTGOING.items() if entry.target == target), target)
    return {"name": name, **asdict(step)}  # type: ignore[call-overload]
