"""FedRE: each client says one random mixture of its prototypes, and the server trains one head for all on these.

"FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated Learning", arXiv 2511.22265, 2025.

server remembers: head.* (weight (K, d), and bias (K,) if the networks have one)
server says:      the same
client remembers: model.*
client says:      classes (K_i,), weights (K_i,) that sum to one, mixture (d,)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.algorithms.parts.heads import check_linear, first_head, linear, take_head
from protonorm.algorithms.parts.messages import head_slots, make_schema
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.algorithms.parts.server_training import descend, shuffled
from protonorm.core import Algorithm, Client, Field, Schema, Server, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.tensors import Tensors, snapshot, under


@dataclass(frozen=True, config=STRICT)
class FedRE(Algorithm):
    """Train features under a head that the server trains on one mixed prototype a client."""

    server_epochs: Count = 1  # passes over what the clients sent
    reduction: Literal["sum", "mean"] = "sum"  # of the server's loss over a batch; a sum's step grows with the cohort

    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Clients send a mixture and what it is of, the server a head."""
        own = {
            "classes": Field(("K_i",), torch.int64, least=0, below="K", distinct=True),
            "weights": Field(("K_i",), share=True),
            "mixture": Field(("d",)),
        }
        return make_schema(task, up=((own,),), down=head_slots(task))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Refuse a head that is more than one linear layer."""
        check_linear(model, task)

    def init_server(self, server: Server) -> Step:
        """Begin with one head for all."""
        head = first_head(server)
        return Step(head, head)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over the server's head."""
        return take_head(state, message)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and received head with the cross-entropy, then mix the prototypes: e_i = Σ_j w_ij c_ij."""
        model = client.load(self.receive(client, state, message))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        own = class_means(client, model)
        weights = draw_weights(len(own["classes"]))
        said = {"classes": own["classes"], "weights": weights, "mixture": weights @ own["prototypes"]}
        return Step(snapshot("model", model), said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Train the head to tell what each mixture is of: the cross-entropy of g(e_i) and w_i."""
        head = linear(under(state, "head"))

        def loss(mixtures: Tensor, shares: Tensor) -> Tensor:
            return cross_entropy(head(mixtures), shares, reduction="sum") / self._parts(len(shares))

        batches = shuffled(*stack_mixtures(replies, server), self.server_epochs, server.batch_size)
        mean = descend(loss, batches, torch.optim.SGD(head.parameters(), server.lr), server)
        said = snapshot("head", head)
        return Step(said, said, {"head.loss": mean})

    def _parts(self, size: int) -> int:
        return 1 if self.reduction == "sum" else size


def draw_weights(count: int) -> Tensor:
    """Draw weights (K_i,) above zero that sum to one: uniform numbers over their sum."""
    drawn = 1 - torch.rand(count)  # (0, 1]
    return drawn / drawn.sum()


def stack_mixtures(replies: Iterator[Tensors], server: Server) -> tuple[Tensor, Tensor]:
    """Put the clients' mixtures one below the other, (N, d), and beside each the classes' shares in it, (N, K)."""
    mixtures, shares = [torch.zeros(0, server.feature_dim)], [torch.zeros(0, server.num_classes)]
    for reply in replies:
        share = torch.zeros(server.num_classes).index_copy_(0, reply["classes"], reply["weights"])
        mixtures.append(reply["mixture"].unsqueeze(0))
        shares.append(share.unsqueeze(0))
    return torch.cat(mixtures), torch.cat(shares)
