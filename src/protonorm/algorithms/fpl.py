"""FPL: FedAvg, whose clients' features also follow clusters of all clients' prototypes.

Huang et al., "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023.

server state:    model.* (floating tensors; without buffers if those are local)
server message:  the same; after the first round also clusters (C, d), the means of the clusters of clients' prototypes,
                 and cluster_classes (C,)
client state:    model.*
client message:  model.* as the server, num_examples (), classes (K_i,), prototypes (K_i, d)
"""

from collections.abc import Iterable

import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import normalize

from protonorm.algorithms.parts.messages import EXAMPLES, AveragedModel, Buffers, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import class_means, stack_prototypes
from protonorm.core import Client, Contribution, Field, Schema, Server, Step, Task, optional
from protonorm.core.schema import slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Positive
from protonorm.geometry.losses import cosines, prototype_loss
from protonorm.tensors import Tensors, floats, prefixed, strip_prefix


@dataclass(frozen=True, config=STRICT)
class FPL(AveragedModel):
    """Federated averaging with features drawn to the clusters of their class, and to the clusters' mean."""

    tau: Positive = 0.02  # τ, temperature of the cosines
    buffers: Buffers = "averaged"  # batch norm statistics

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send the model; clients add prototypes, the server clusters from round 1 on."""
        model = slots_like(self.sent(task.template))
        classes = Field(("C",), torch.int64, least=0, below="K")
        clusters = {"cluster_classes": classes, "clusters": Field(("C", "d"))}
        return make_schema(task, up=(*model, EXAMPLES, (class_vectors("K_i"),)), down=(*model, optional(clusters)))

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Replace the client's model by the received model."""
        return state | prefixed("model", strip_prefix(message, "model"))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + ℓ + mean (z − u_y)², then compute the local prototypes."""
        model = client.load(self.receive(client, state, message))
        none = {"cluster_classes": torch.zeros(0, dtype=torch.int64), "clusters": torch.zeros(0, client.feature_dim)}
        received = none | message  # none before the first aggregate
        classes, clusters = (received[name].to(client.device) for name in none)  # (C,), (C, d)
        members = (classes == torch.arange(client.num_classes, device=client.device).unsqueeze(1)).float()  # (K, C)
        known = members.any(1)
        means = members @ clusters / members.sum(1, keepdim=True).clamp(min=1)  # u (K, d)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            near = cluster_contrast(z, y, classes, clusters, self.tau) + prototype_loss(z, y, means, known)
            return client.cross_entropy(model.head(z), y) + near

        step = self.trained(client, model, client.fit(loss, model))
        return step._replace(message=step.message | class_means(client, model))

    def aggregate(self, server: Server, state: Tensors, replies: Iterable[Tensors]) -> Step:
        """Average the models, w = Σ n_i w_i / Σ n_i, and cluster the prototypes of each class."""
        models, received = server.combine(), []
        for reply in replies:
            models.add(Contribution(prefixed("model", strip_prefix(floats(reply), "model")), reply["num_examples"]))
            received.append({name: reply[name] for name in ("classes", "prototypes")})
        model = models.sums().means
        vectors, labels = stack_prototypes(received, server)
        classes, clusters = cluster(labels, vectors, server.num_classes)
        return Step(model, model | {"cluster_classes": classes, "clusters": clusters})


def cluster_contrast(z: Tensor, y: Tensor, classes: Tensor, clusters: Tensor, tau: float) -> Tensor:
    """Average −log of Σ_{c of class y} e^{cos(z, c)/τ} / Σ_c e^{cos(z, c)/τ}: features z (B, d), clusters (C, d).

    Samples of classes without a cluster contribute zero but are counted.
    """
    own = classes == y.unsqueeze(1)  # (B, C)
    known = own.any(1)
    logits = cosines(z.float(), clusters) / tau
    chosen = logits.masked_fill(~own & known.unsqueeze(1), -torch.inf)
    gap = logits.logsumexp(1) - chosen.logsumexp(1) if len(classes) else logits.new_zeros(len(y))
    return torch.where(known, gap, 0.0).mean()


def cluster(labels: Tensor, vectors: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Cluster the vectors (N, d) of each class by FINCH: classes (C,) and means (C, d) of the clusters.

    Every cluster joins its nearest by cosine, again and again; a class stops before all of it would be one cluster,
    unless already the first step leaves one.
    """
    group, centres, classes = torch.arange(len(vectors)), vectors, labels
    first, final = True, torch.zeros(num_classes, dtype=torch.bool)
    while len(vectors):
        itself = torch.arange(len(classes))
        nearest = torch.where(final[classes], itself, nearest_of_class(centres, classes, num_classes))
        joined = components(nearest)  # (C,) in which of the new clusters each is
        count = int(joined.max()) + 1
        remaining = torch.zeros(count, dtype=torch.int64).index_copy(0, joined, classes)
        ended = (remaining.bincount(minlength=num_classes) == 1) & ~final
        if not first and bool(ended.any()):
            final |= ended
            continue
        if count == len(classes):
            break
        group, classes, first = joined[group], remaining, False
        sums = torch.zeros(count, vectors.shape[1], dtype=torch.float64).index_add(0, group, vectors.double())
        centres = (sums / group.bincount().unsqueeze(1)).to(vectors)
    return classes, centres


def nearest_of_class(vectors: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return which other vector of its class is nearest to each by cosine, (N,); itself if there is no other."""
    counts = torch.bincount(labels, minlength=num_classes)  # (K,)
    order = labels.argsort(stable=True)
    column = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    place = torch.zeros_like(order).index_copy(0, order, column)  # (N,) of a vector among those of its class
    table = torch.full((num_classes, int(counts.max())), -1).index_put((labels, place), torch.arange(len(labels)))
    units = normalize(vectors)[table]  # (K, n, d); where the table is −1, any vector
    cosine = (units @ units.mT).masked_fill((table < 0).unsqueeze(1), -torch.inf)
    cosine.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    other = table.gather(1, cosine.argmax(2))[labels, place]
    return torch.where(counts[labels] > 1, other, torch.arange(len(labels)))


def components(nearest: Tensor) -> Tensor:
    """Number the connected components of the graph that links each of N nodes with its nearest, (N,)."""
    size = len(nearest)
    links = coo_array((torch.ones(size), (torch.arange(size), nearest)), shape=(size, size))
    return torch.as_tensor(connected_components(links, directed=False)[1], dtype=torch.int64)
