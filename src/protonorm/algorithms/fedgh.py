"""FedGH: the server trains a global head on the clients' prototypes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023.

server state:    head.* (weight (K, d), and bias (K,) if the networks have one)
server message:  the same
client state:    model.*
client message:  classes (K_i,), prototypes (K_i, d)
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.nn.functional import cross_entropy

from protonorm.algorithms.parts.heads import SharedHead, train_head
from protonorm.algorithms.parts.messages import class_vectors, head_slots, make_schema
from protonorm.algorithms.parts.prototypes import class_means, stack_prototypes
from protonorm.algorithms.parts.training import fit_labels, shuffled
from protonorm.core import Client, Schema, Server, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedGH(SharedHead):
    """Client features trained under a global head, which the server trains on the clients' prototypes."""

    server_epochs: Count = 1  # passes over the clients' prototypes

    def schema(self, task: Task) -> Schema:
        """Return the schema: clients send prototypes, the server a head."""
        return make_schema(task, up=((class_vectors("K_i"),),), down=head_slots(task))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and received head with cross-entropy, then compute the local prototypes."""
        model = client.load(self.receive(client, state, message))
        mean = fit_labels(client, model)
        return Step(snapshot("model", model), class_means(client, model), {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Train the head to classify the prototypes."""
        batches = shuffled(*stack_prototypes(replies, server), self.server_epochs, server.batch_size)
        return train_head(state, cross_entropy, batches, server)
