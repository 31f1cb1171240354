"""Methods whose server trains one head for all clients on what they send.

FedGH: the server trains a global head on the clients' prototypes.
Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023.
FedRE: each client sends a random mixture of its prototypes, on which the server trains a global head.
"FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated Learning", arXiv 2511.22265, 2025.

server state:    head.* (weight (K, d), and bias (K,) if the networks have one)
server message:  the same
client state:    model.*
client message:  classes (K_i,), prototypes (K_i, d); of FedRE classes, weights (K_i,) that sum to 1, mixture (d,)
"""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.algorithms.parts.heads import SharedHead, train_head
from protonorm.algorithms.parts.messages import class_indices, class_vectors, head_slots, make_schema
from protonorm.algorithms.parts.prototypes import class_means, stack_prototypes
from protonorm.algorithms.parts.training import fit_labels, shuffled
from protonorm.core import Client, Field, Schema, Server, Step, Task
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


@dataclass(frozen=True, config=STRICT)
class FedRE(SharedHead):
    """Client features trained under a global head, which the server trains on a mixed prototype per client."""

    server_epochs: Count = 1  # passes over the clients' mixtures
    reduction: Literal["sum", "mean"] = "sum"  # of the server's loss over a batch; a sum's step grows with the cohort

    def schema(self, task: Task) -> Schema:
        """Return the schema: clients send a mixture with its classes and weights, the server a head."""
        reply = {"classes": class_indices("K_i"), "weights": Field(("K_i",), share=True), "mixture": Field(("d",))}
        return make_schema(task, up=((reply,),), down=head_slots(task))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and received head with cross-entropy, then mix the prototypes: e_i = Σ_j w_ij c_ij."""
        model = client.load(self.receive(client, state, message))
        mean = fit_labels(client, model)
        means = class_means(client, model)
        weights = draw_weights(len(means["classes"]))
        reply = {"classes": means["classes"], "weights": weights, "mixture": weights @ means["prototypes"]}
        return Step(snapshot("model", model), reply, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Train the head to predict the class weights of each mixture: the cross-entropy of g(e_i) and w_i."""

        def loss(logits: Tensor, shares: Tensor) -> Tensor:
            return cross_entropy(logits, shares, reduction="sum") / (1 if self.reduction == "sum" else len(shares))

        batches = shuffled(*stack_mixtures(replies, server), self.server_epochs, server.batch_size)
        return train_head(state, loss, batches, server)


def draw_weights(count: int) -> Tensor:
    """Draw positive weights (K_i,) that sum to 1: uniform numbers over their sum."""
    weights = 1 - torch.rand(count)  # (0, 1]
    return weights / weights.sum()


def stack_mixtures(replies: Iterable[Tensors], server: Server) -> tuple[Tensor, Tensor]:
    """Stack the clients' mixtures, (N, d), and their class weights, (N, K)."""
    mixtures, shares = [torch.zeros(0, server.feature_dim)], [torch.zeros(0, server.num_classes)]
    for reply in replies:
        share = torch.zeros(server.num_classes).index_copy_(0, reply["classes"], reply["weights"])
        mixtures.append(reply["mixture"].unsqueeze(0))
        shares.append(share.unsqueeze(0))
    return torch.cat(mixtures), torch.cat(shares)
