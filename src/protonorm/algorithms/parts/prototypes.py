"""Shared parts of prototype methods: computing, averaging and comparing vectors by class.

In states and messages these are `classes` (K',) and `prototypes` (K', d) of the classes that occur.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.core import Additive, Algorithm, Client, Contribution, Server, SplitModel, Step, Sums, Task
from protonorm.core.node import Loss
from protonorm.core.schema import Schema, optional
from protonorm.errors import Diverged
from protonorm.geometry.prototypes import class_sums, closeness, means_of, vectors_by_class
from protonorm.tensors import Tensors, all_finite, snapshot, to_cpu


class RunningMeans:
    """Means of vectors by class, accumulated batch by batch in float64."""

    def __init__(self, client: Client, name: str, width: int) -> None:
        self._name = name
        self._sums = torch.zeros(client.num_classes, width, dtype=torch.float64, device=client.device)
        self._counts = torch.zeros(client.num_classes, dtype=torch.int64, device=client.device)

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add vectors (B, width) with labels (B,)."""
        sums, counts = class_sums(vectors, labels, len(self._counts))
        self._sums += sums
        self._counts += counts

    def result(self) -> Tensors:
        """Return the classes that occur (K_i,) and, under the name, their means (K_i, width), in float32 on the CPU."""
        classes, means = means_of(self._sums, self._counts)
        return {"classes": to_cpu(classes), self._name: to_cpu(means.float())}


def class_means(client: Client, model: SplitModel) -> Tensors:
    """Compute the mean features of each class over the training part (Eq. 2), in evaluation mode."""
    model.eval()
    return mean_outputs(client, model.features, "prototypes", client.feature_dim)  # classes (K_i,), prototypes (K_i, d)


@torch.no_grad()
def mean_outputs(client: Client, network: nn.Module, name: str, width: int) -> Tensors:
    """Compute a network's mean outputs by class over the training part: classes (K_i,), and (K_i, width) by name."""
    network.eval()
    means = RunningMeans(client, name, width)
    for x, y in client.train.sweep(device=client.device):
        with client.autocast():
            outputs = network(x)
        means.add(outputs, y)
    result = means.result()
    if not all_finite(result[name]):
        raise Diverged(f"The {name} of {client.label} are not finite after round {client.round}.")
    return result


def train_prototypes(
    client: Client, model: SplitModel, loss: Loss, measured: Literal["before", "during", "after"] = "after"
) -> Step:
    """Train with a loss of features z (B, d) and labels y (B,); remember and send the model's prototypes (Eq. 2).

    They are those of the model before or after training, or running means during it.
    """
    untrained = class_means(client, model) if measured == "before" else None
    running = RunningMeans(client, "prototypes", client.feature_dim)

    def of_batch(x: Tensor, y: Tensor) -> Tensor:
        z = model.features(x)
        if measured == "during":
            running.add(z.detach(), y)
        return loss(z, y)

    mean = client.fit(of_batch, model)
    prototypes = running.result() if measured == "during" else untrained or class_means(client, model)
    return Step(snapshot("model", model) | prototypes, prototypes, {"loss": mean})


def received_prototypes(message: Tensors, client: Client) -> tuple[Tensor, Tensor]:
    """Scatter a message's prototypes to all classes: (K, d), and which classes are known (K,)."""
    return scatter_vectors(message, "prototypes", client.feature_dim, client)


def scatter_vectors(message: Tensors, name: str, width: int, client: Client) -> tuple[Tensor, Tensor]:
    """Scatter the named vectors to all classes: (K, width), and which classes are known (K,)."""
    vectors = torch.zeros(client.num_classes, width, device=client.device)
    known = torch.zeros(client.num_classes, dtype=torch.bool, device=client.device)
    if name in message:
        classes, received = vectors_by_class(message, name, client.num_classes, width)
        vectors[classes.to(client.device)] = received.to(vectors)
        known[classes.to(client.device)] = True
    return vectors, known


def by_class(reply: Tensors, server: Server, name: str = "prototypes", weights: Tensor | None = None) -> Contribution:
    """Scatter a reply's vectors (K_i, width) to all classes, weighted by weights (K_i,), its `counts`, or equally."""
    classes, vectors = reply["classes"], reply[name]
    counts = reply.get("counts") if weights is None else weights
    rows = vectors.new_zeros(server.num_classes, vectors.shape[1]).index_copy_(0, classes, vectors)  # (K, width)
    shares = torch.ones(len(classes), dtype=torch.float64) if counts is None else counts.double()
    weight = torch.zeros(server.num_classes, dtype=torch.float64).index_copy_(0, classes, shares)  # (K,)
    return Contribution({name: rows}, weight)


def means_by_class(sums: Sums, width: int, name: str = "prototypes") -> Tensors:
    """Return the classes received (K',) and their means (K', width) from a round's sums."""
    if name not in sums.means:
        return {"classes": torch.zeros(0, dtype=torch.int64), name: torch.zeros(0, width)}
    classes = sums.weight_of(name).nonzero().flatten()
    return {"classes": classes, name: sums.means[name][classes]}


def keep_missing(state: Tensors, sent: Tensors, server: Server, name: str = "prototypes") -> Tensors:
    """Add the previous vectors of classes that were not sent in this round."""
    if name not in state:
        return sent
    known, previous = vectors_by_class(state, name, server.num_classes, sent[name].shape[1])
    missing = ~torch.isin(known, sent["classes"])
    classes, order = torch.cat([sent["classes"], known[missing]]).sort()
    return {"classes": classes, name: torch.cat([sent[name], previous[missing].to(sent[name])])[order]}


class AveragedByClass(Additive):
    """Method whose server publishes the average vector of each class; classes that were not sent keep their last."""

    averaged: ClassVar[str] = "prototypes"  # name of the vectors in messages

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Scatter a client's vectors to all classes, with equal weights, or with `counts` if the reply has them."""
        return by_class(reply, server, self.averaged)

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the average of each class (Eq. 7)."""
        vectors = self.average(server, state, sums)
        return Step(vectors, vectors)

    def average(self, server: Server, state: Tensors, sums: Sums) -> Tensors:
        """Return classes (K',) and the average vectors of all classes received so far."""
        width = server.num_classes if self.averaged == "logits" else server.feature_dim
        return keep_missing(state, means_by_class(sums, width, self.averaged), server, self.averaged)


def stack_prototypes(replies: Iterable[Tensors], server: Server) -> tuple[Tensor, Tensor]:
    """Stack the clients' prototypes, (N, d), and their classes, (N,)."""
    vectors, labels = [torch.zeros(0, server.feature_dim)], [torch.zeros(0, dtype=torch.int64)]
    for reply in replies:
        vectors.append(reply["prototypes"])
        labels.append(reply["classes"])
    return torch.cat(vectors), torch.cat(labels)


def prototype_scores(
    algorithm: Algorithm, client: Client, state: Tensors, message: Tensors, x: Tensor
) -> dict[str, Tensor]:
    """Score by the nearest global prototype, the nearest local prototype (Eq. 6), and the logits, in a single pass."""
    z = client.model.features(x)
    scores = {}
    for rule, tensors in (("nearest-global", algorithm.prototypes_of(client, message)), ("nearest-local", state)):
        if "prototypes" in tensors:
            classes, vectors = vectors_by_class(tensors, "prototypes", client.num_classes, client.feature_dim)
            scores[rule] = closeness(z, classes.to(z.device), vectors.to(z.device), client.num_classes)
    return scores | {"logits": client.model.head(z)}


class Prototypes(Algorithm):
    """Method whose clients send prototypes and are sent some from round 1 on, the nearest of which predicts."""

    known: ClassVar[str] = "K'"  # number of classes of the server's prototypes: all K, or those received so far

    rules: ClassVar[tuple[str, ...]] = ("nearest-global", "nearest-local", "logits", "joint")

    def schema(self, task: Task) -> Schema:
        """Return the schema: clients send prototypes of their classes, the server from round 1 on."""
        return make_schema(task, up=((class_vectors("K_i"),),), down=(optional(class_vectors(self.known)),))

    scores = prototype_scores
