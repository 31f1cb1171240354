"""Local: every client trains alone.

server remembers: nothing
server says:      nothing
client remembers: model.*
client says:      nothing
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.core import Algorithm, Client, Schema, Server, Step, Task
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class Local(Algorithm):
    """Minimise the cross-entropy on each client's own data."""

    def schema(self, task: Task) -> Schema:
        """Nothing is sent."""
        return Schema()

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with the cross-entropy alone."""
        model = client.load(state)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        return Step(snapshot("model", model), {}, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Ignore all replies."""
        return Step({}, {})
