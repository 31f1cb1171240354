"""Local: every client trains alone.

server state:    empty
server message:  empty; model.* (floating tensors) before the first round, if all clients start from the same model
client state:    model.*
client message:  empty
"""

from typing import Literal

from torch import Tensor

from protonorm.algorithms.parts.messages import Averaged
from protonorm.core import Client, Field, Schema, Server, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, floats, prefixed, snapshot


@dataclass(frozen=True, config=STRICT)
class Local(Averaged):
    """Local training on each client's own data, without communication."""

    initial: Literal["own", "server"] = "own"  # weights before round 1: each client's own, or a common model

    @property
    def needs_shared_network(self) -> bool:
        """Whether all clients start from the same model, and therefore have the same network."""
        return self.initial == "server"

    def schema(self, task: Task) -> Schema:
        """Return the schema: no messages, except an optional initial model."""
        if self.initial == "own":
            return Schema()
        model = floats(prefixed("model", task.template.state_dict()))
        return Schema(down=(optional({name: Field(tuple(value.shape)) for name, value in model.items()}),))

    def init_server(self, server: Server) -> Step:
        """Return an empty message, or the initial model of all clients."""
        return Step({}, floats(snapshot("model", server.model)) if server.model is not None else {})

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with cross-entropy only."""
        model = client.load(state | message)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        return Step(snapshot("model", model), {}, {"loss": mean})
