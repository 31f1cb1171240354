"""FedSAF: clients match the relative arrangement of the average prototypes instead of their positions.

"FedSAF", arXiv 2605.05959, 2026; called FedStruct in the authors' code.

server state:    classes (K',), prototypes (K', d) of the classes received so far
server message:  the same
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d)
"""

from typing import Literal

import torch
from torch import Tensor

from protonorm.algorithms.parts.prototypes import AveragedByClass, Prototypes, received_prototypes, train_prototypes
from protonorm.core import Client, Contribution, Server, Step, Sums
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Fraction, NonNegative
from protonorm.geometry.losses import Comparison, batch_means, rotate_rows, structural_loss
from protonorm.tensors import Tensors


@dataclass(frozen=True, config=STRICT)
class FedSAF(Prototypes, AveragedByClass):
    """Training towards the structure of the average prototypes."""

    lam: NonNegative = 1.0  # λ, weight of the structure of a batch's class means
    gamma: NonNegative = 1.0  # γ, weight of the structure of its samples
    compared: Comparison = "cka"  # similarity of structures: of their Gram matrices, or of all pairwise distances
    rotation: bool = False  # whether clients' prototypes are rotated to the last average before averaging …
    beta: Fraction = 0.1  # β, … and the share of the new average then
    measured: Literal["after", "during"] = "after"  # prototypes of the trained model, or running means during training

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λ·L(class means, prototypes) + γ·L(samples, their prototypes), then compute prototypes."""
        model = client.load(state)
        prototypes, known = received_prototypes(message, client)  # (K, d), (K,)

        def loss(z: Tensor, y: Tensor) -> Tensor:
            classes, samples = self.structure(z.float(), y, prototypes, known)
            return client.cross_entropy(model.head(z), y) + self.lam * classes + self.gamma * samples

        return train_prototypes(client, model, loss, self.measured)

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Scatter a client's prototypes to all classes, rotated to the last average if configured and available."""
        rotate = self.rotation and "prototypes" in state
        return super().contribution(server, state, rotate_to(state, reply, server) if rotate else reply)

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Average per class, or move the last average by β; classes that were not sent keep their prototype."""
        prototypes = self.average(server, state, sums)
        if self.rotation and "prototypes" in state:
            old, vectors = torch.isin(prototypes["classes"], state["classes"]), prototypes["prototypes"].clone()
            vectors[old] = torch.lerp(state["prototypes"], vectors[old], self.beta)  # new classes: adopted unchanged
            prototypes |= {"prototypes": vectors}
        return Step(prototypes, prototypes)

    def structure(self, z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Compute L of class means and of samples, in the precision of z (B, d): y (B,), prototypes (K, d)."""
        with torch.autocast(z.device.type, enabled=False):
            means, present = batch_means(z, y, len(prototypes))
            targets = torch.where(known[y].unsqueeze(1), prototypes[y], z.detach())  # unknown: unchanged
            classes = structural_loss(means, prototypes, present & known, self.compared)
            return classes, structural_loss(z, targets, torch.ones_like(known[y]), self.compared)


def rotate_to(state: Tensors, reply: Tensors, server: Server) -> Tensors:
    """Rotate a client's prototypes (K_i, d) to be nearest to the last average's prototypes of the same classes.

    Both are centred over all classes of the average; classes that the client lacks are filled in from the average. A
    single class is translated, not rotated; classes that the average lacks are unchanged.
    """
    known, shared = state["classes"], torch.isin(reply["classes"], state["classes"])
    classes, vectors = reply["classes"][shared], reply["prototypes"].clone()
    average = torch.zeros(server.num_classes, server.feature_dim).index_copy_(0, known, state["prototypes"])  # (K, d)
    own = average.index_copy(0, classes, vectors[shared])
    mean, own_mean = average[known].mean(dim=0), own[known].mean(dim=0)
    centred = own[classes] - own_mean
    vectors[shared] = (rotate_rows(centred, average[classes] - mean) if len(classes) > 1 else centred) + mean
    return reply | {"prototypes": vectors}
