"""FedSAF: clients make their classes lie to each other as the average prototypes do, wherever their own features are.

"FedSAF", arXiv 2605.05959, 2026; the program calls it FedStruct.

server remembers: classes (K',), prototypes (K', d) of the classes seen so far
server says:      the same
client remembers: model.*, classes (K_i,), prototypes (K_i, d)
client says:      classes (K_i,), prototypes (K_i, d)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import (
    RunningMeans,
    average_prototypes,
    class_means,
    prototype_scores,
    targets,
)
from protonorm.core import Algorithm, Client, Schema, Server, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Fraction, NonNegative
from protonorm.geometry.structure import Comparison, batch_means, structural_loss, turned
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedSAF(Algorithm):
    """Train towards the structure of the average prototypes."""

    lam: NonNegative = 1.0  # λ, weight of the structure of a batch's class means
    gamma: NonNegative = 1.0  # γ, weight of the structure of its samples
    compared: Comparison = "cka"  # structures: by their Gram matrices, or by distances between all pairs
    rotation: bool = False  # whether clients' prototypes are turned to the last average before they are averaged …
    beta: Fraction = 0.1  # β, … and the share of the average that is new then
    measured: Literal["after", "during"] = "after"  # prototypes of the trained model, or running means of its training

    rules: ClassVar[tuple[str, ...]] = ("global", "local", "logits", "joint")

    def schema(self, task: Task) -> Schema:
        """Both sides send prototypes, the server from round 1 on."""
        return make_schema(task, up=((class_vectors("K_i"),),), down=(optional(class_vectors("K'")),))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λ·L(class means, prototypes) + γ·L(samples, their prototypes), then measure prototypes."""
        model = client.load(state)
        prototypes, known = targets(message, client)  # (K, d), (K,)
        running = RunningMeans(client, "prototypes", client.feature_dim)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            if self.measured == "during":
                running.add(z.detach(), y)
            classes, samples = self.structure(z.float(), y, prototypes, known)
            return client.cross_entropy(model.head(z), y) + self.lam * classes + self.gamma * samples

        mean = client.fit(loss, model)
        own = running.result() if self.measured == "during" else class_means(client, model)
        return Step(snapshot("model", model) | own, own, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average per class, or turn to the last average and move that by β; a class that nobody sent stays."""
        if not self.rotation or "prototypes" not in state:
            prototypes = average_prototypes(state, replies, server)
        else:
            moved = average_prototypes({}, (turned_to(state, reply, server) for reply in replies), server)
            prototypes = _smoothed(state, average_prototypes(state, [moved], server), self.beta)
        return Step(prototypes, prototypes)

    def structure(self, z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Give L of a batch's class means and L of its samples: z (B, d), y (B,), prototypes (K, d), known (K,).

        It is computed in the precision of z, whatever that of the networks.
        """
        with torch.autocast(z.device.type, enabled=False):
            means, there = batch_means(z, y, len(prototypes))
            wanted = torch.where(known[y].unsqueeze(1), prototypes[y], z.detach())  # what is not known stays as it is
            classes = structural_loss(means, prototypes, there & known, self.compared)
            return classes, structural_loss(z, wanted, torch.ones_like(known[y]), self.compared)

    scores = prototype_scores


def turned_to(state: Tensors, reply: Tensors, server: Server) -> Tensors:
    """Turn a client's prototypes (K_i, d) so that they lie nearest to the last average's of the same classes.

    Both are centred over all classes that the average has; where the client has none of its own, it has the average's.
    A single class is moved, not turned; classes that the average lacks stay as they were sent.
    """
    known, shared = state["classes"], torch.isin(reply["classes"], state["classes"])
    classes, vectors = reply["classes"][shared], reply["prototypes"].clone()
    last = torch.zeros(server.num_classes, server.feature_dim).index_copy_(0, known, state["prototypes"])  # (K, d)
    own = last.index_copy(0, classes, vectors[shared])
    mean, own_mean = last[known].mean(dim=0), own[known].mean(dim=0)
    centred = own[classes] - own_mean
    vectors[shared] = (turned(centred, last[classes] - mean) if len(classes) > 1 else centred) + mean
    return reply | {"prototypes": vectors}


def _smoothed(state: Tensors, fresh: Tensors, beta: float) -> Tensors:
    """Move the last prototypes by β towards new ones; a new class is taken as it is."""
    old = torch.isin(fresh["classes"], state["classes"])
    vectors = fresh["prototypes"].clone()
    vectors[old] = torch.lerp(state["prototypes"], vectors[old], beta)
    return fresh | {"prototypes": vectors}
