"""What prototype methods share: measuring, averaging and comparing one vector per class.

In states and messages these are `classes` (K',) and `prototypes` (K', d), of the classes there are.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from protonorm.core import Algorithm, Client, Server, SplitModel
from protonorm.errors import Diverged
from protonorm.geometry.prototypes import average, class_sums, closeness, means_of, vectors_by_class
from protonorm.tensors import Tensors, all_finite


class RunningMeans:
    """Means of vectors by class, gathered batch by batch in float64."""

    def __init__(self, client: Client, name: str, width: int) -> None:
        self._name = name
        self._sums = torch.zeros(client.num_classes, width, dtype=torch.float64, device=client.device)
        self._counts = torch.zeros(client.num_classes, dtype=torch.int64, device=client.device)

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Take in vectors (B, width) of labels (B,)."""
        sums, counts = class_sums(vectors, labels, len(self._counts))
        self._sums += sums
        self._counts += counts

    def result(self) -> Tensors:
        """Give the classes there are (K_i,) and, under the name, their means (K_i, width), in float32 on the CPU."""
        classes, means = means_of(self._sums, self._counts)
        return {"classes": classes.cpu(), self._name: means.float().cpu()}


def class_means(client: Client, model: SplitModel) -> Tensors:
    """Average the features of each class over the whole training part (Eq. 2), in evaluation mode."""
    model.eval()
    return mean_outputs(client, model.features, "prototypes", client.feature_dim)  # classes (K_i,), prototypes (K_i, d)


@torch.no_grad()
def mean_outputs(client: Client, network: nn.Module, name: str, width: int) -> Tensors:
    """Average a network's outputs by class over the training part: classes (K_i,) and, under a name, (K_i, width)."""
    network.eval()
    means = RunningMeans(client, name, width)
    for x, y in client.train.sweep(device=client.device):
        with client.autocast():
            outputs = network(x)
        means.add(outputs, y)
    found = means.result()
    if not all_finite(found[name]):
        raise Diverged(f"The {name} of {client.label} are not finite after round {client.round}.")
    return found


def targets(message: Tensors, client: Client) -> tuple[Tensor, Tensor]:
    """Lay a message's prototypes out over all classes: (K, d), and which classes are known (K,)."""
    return lay_out(message, "prototypes", client.feature_dim, client)


def lay_out(message: Tensors, name: str, width: int, client: Client) -> tuple[Tensor, Tensor]:
    """Lay the vectors under a name out over all classes: (K, width), and which classes are known (K,)."""
    vectors = torch.zeros(client.num_classes, width, device=client.device)
    known = torch.zeros(client.num_classes, dtype=torch.bool, device=client.device)
    if name in message:
        classes, found = vectors_by_class(message, name, client.num_classes, width)
        vectors[classes.to(client.device)] = found.to(vectors)
        known[classes.to(client.device)] = True
    return vectors, known


def average_prototypes(state: Tensors, replies: Iterable[Tensors], server: Server) -> Tensors:
    """Average the clients' prototypes class by class (Eq. 7); a class that nobody sent keeps its last one."""
    return average_by_class(state, replies, "prototypes", server.num_classes, server.feature_dim)


def average_by_class(state: Tensors, replies: Iterable[Tensors], name: str, num_classes: int, width: int) -> Tensors:
    """Average the clients' vectors under a name class by class; a class that nobody sent keeps its last vector.

    Replies with `counts` (K_i,) are weighted by them.
    """
    uploads = ((reply["classes"], reply[name], reply.get("counts")) for reply in replies)
    mean, seen = average(uploads, num_classes, width)  # (K, width), (K,)
    if name in state:
        classes, before = vectors_by_class(state, name, num_classes, width)
        missed = ~seen[classes]
        mean[classes[missed]] = before[missed].to(mean.dtype)
        seen[classes] = True
    return {"classes": seen.nonzero().flatten(), name: mean[seen].float()}


def stack_prototypes(replies: Iterable[Tensors], server: Server) -> tuple[Tensor, Tensor]:
    """Put the clients' prototypes one below the other: (N, d), and the class of each (N,)."""
    vectors, labels = [torch.zeros(0, server.feature_dim)], [torch.zeros(0, dtype=torch.int64)]
    for reply in replies:
        vectors.append(reply["prototypes"])
        labels.append(reply["classes"])
    return torch.cat(vectors), torch.cat(labels)


def prototype_scores(
    algorithm: Algorithm, client: Client, state: Tensors, message: Tensors, x: Tensor
) -> dict[str, Tensor]:
    """Score by the nearest global prototype, the nearest local one (Eq. 6), and the logits, in one pass."""
    z = client.model.features(x)
    scores = {}
    for rule, held in (("global", message), ("local", state)):
        if "prototypes" in held:
            classes, vectors = vectors_by_class(held, "prototypes", client.num_classes, client.feature_dim)
            scores[rule] = closeness(z, classes.to(z.device), vectors.to(z.device), client.num_classes)
    return scores | {"logits": client.model.head(z)}
