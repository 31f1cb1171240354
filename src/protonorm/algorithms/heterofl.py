"""HeteroFL: clients train the first channels of every layer, up to their width; the server averages overlaps.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021.

server state:    model.* (parameters of the widest network)
server message:  the same
client state:    model.* of its own width, classes (K_i,)
client message:  model.* (parameters of its own width), classes (K_i,); num_examples () if weighted
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protonorm.algorithms.parts.heads import check_one_layer
from protonorm.algorithms.parts.messages import Weighting, class_indices, examples, examples_slots
from protonorm.algorithms.parts.training import fit_labels
from protonorm.algorithms.parts.widths import AveragedParts, cut, new_statistics, parameters, width_schema
from protonorm.core import Client, Schema, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class HeteroFL(AveragedParts):
    """Federated averaging of a model of which narrow clients train a part."""

    masked: bool = True  # whether a client masks the logits of classes that it lacks
    weighting: Weighting = "clients"  # of the average: equal as published, or by n_i

    def schema(self, task: Task) -> Schema:
        """Return the schema: the server sends the whole model, clients their parts and classes."""
        return width_schema(task, ({"classes": class_indices("K_i")},), *examples_slots(self.weighting))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head has parameters other than those of a single linear layer."""
        check_one_layer(model, task)

    def init_client(self, client: Client) -> Tensors:
        """Create a network of the client's own width, used until the server's arrives."""
        return snapshot("model", client.model) | {"classes": own_classes(client)}

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the first channels of the whole model with cross-entropy."""
        return self.train(client, state | cut(message, state))

    def train(self, client: Client, held: Tensors) -> Step:
        """Train the client's part of the whole model with cross-entropy."""
        client.load(held)
        model = self.network(client, held)
        with new_statistics(client.model):
            mean = fit_labels(client, model)
        said = parameters(client.model) | {"classes": own_classes(client)} | examples(client, self.weighting)
        return Step(held | snapshot("model", client.model), said, {"loss": mean})

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score with the client's part of the model."""
        return {"logits": self.network(client, state).eval()(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Mask the logits of classes that the client lacks in the loaded network."""
        if not self.masked:
            return client.model
        head = OwnClasses(client.model.head, state["classes"], client.num_classes).to(client.device)
        return SplitModel(client.model.features, head)


def own_classes(client: Client) -> Tensor:
    """List the classes (K_i,) of which a client has samples."""
    return client.train.class_counts(client.num_classes).nonzero().flatten()


class OwnClasses(nn.Module):
    """Head whose logits of classes that the client lacks are 0 in training and −∞ in prediction."""

    absent: Tensor  # (K,)

    def __init__(self, head: nn.Module, classes: Tensor, num_classes: int) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("absent", torch.ones(num_classes, dtype=torch.bool).index_fill(0, classes, False))

    def forward(self, z: Tensor) -> Tensor:
        """Map features (B, d) to logits (B, K)."""
        logits: Tensor = self.head(z)
        return logits.masked_fill(self.absent, 0.0 if self.training else -torch.inf)
