"""Local: every client trains alone.

server remembers: nothing
server says:      nothing; model.* (floating tensors) before the first round, if all begin with one model
client remembers: model.*
client says:      nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import Tensor

from protonorm.core import Algorithm, Client, Field, Schema, Server, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, floats, prefixed, snapshot


@dataclass(frozen=True, config=STRICT)
class Local(Algorithm):
    """Minimise the cross-entropy on each client's own data."""

    initial: Literal["own", "server"] = "own"  # weights before round 1: each client's own, or one model for all

    @property
    def needs_shared_network(self) -> bool:
        """One model for all is one of a kind."""
        return self.initial == "server"

    def schema(self, task: Task) -> Schema:
        """Nothing is sent, but perhaps the first model."""
        if self.initial == "own":
            return Schema()
        model = floats(prefixed("model", task.template.state_dict()))
        return Schema(down=(optional({name: Field(tuple(value.shape)) for name, value in model.items()}),))

    def init_server(self, server: Server) -> Step:
        """Say nothing, or the model that all begin with."""
        return Step({}, floats(snapshot("model", server.model)) if server.model is not None else {})

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with the cross-entropy alone."""
        model = client.load(state | message)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        return Step(snapshot("model", model), {}, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Ignore all replies."""
        return Step({}, {})
