"""An actor, as the driver knows it: where it is, what it was told, and whose states it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from protonorm.engines.ray.cluster import node_name


@dataclass(eq=False)
class Member:
    """An actor, as the driver knows it."""

    number: int
    handle: Any
    again: bool = False  # whether it has served an earlier run of this process
    node: str = ""  # its id
    told: dict[str, Any] = field(default_factory=dict)  # what it said of its node
    message: int = 0  # the number of the message that it was told last
    holds: dict[int, set[int]] = field(default_factory=dict)  # by client: the rounds whose states are there

    def __str__(self) -> str:
        """Name its place in a sentence."""
        return node_name(self.told.get("host", ""), self.node)


class Coming(NamedTuple):
    """An actor that is not ready: what it was asked last."""

    member: Member
    stage: str  # look or open
