"""FedSA: features and heads are drawn to random class anchors, which follow the average prototypes very slowly.

Zhou et al., "FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based Federated Learning",
AAAI 2025.

server state:    anchors (K, d); classes (K',), prototypes (K', d) of the classes received so far
server message:  the same; before the first round the anchors only
client state:    model.*, classes (K_i,), prototypes (K_i, d)
client message:  classes (K_i,), prototypes (K_i, d)
"""

from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import AveragedByClass, Prototypes, means_by_class, train_prototypes
from protonorm.core import Client, Field, Schema, Server, Step, Sums, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative
from protonorm.geometry.losses import margin_loss
from protonorm.geometry.prototypes import margins
from protonorm.tensors import Tensors


@dataclass(frozen=True, config=STRICT)
class FedSA(Prototypes, AveragedByClass):
    """Features trained towards class anchors with a margin, and heads trained to classify the anchors."""

    lam: NonNegative = 1.0  # λ, weight of the squared error to the anchor; the authors' scripts have 10
    contrast: NonNegative = 1.0  # weight of the margin-enhanced contrast between anchors
    calibration: NonNegative = 1.0  # weight of the head's cross-entropy on the anchors
    decay: Annotated[float, Ge(0), Le(1)] = 0.9999  # share of an anchor that is kept; 1 never moves it
    measured: Literal["after", "during"] = "after"  # prototypes of the trained model, or running means during training

    headline: ClassVar[str] = "nearest-global"

    def schema(self, task: Task) -> Schema:
        """Return the schema: clients send prototypes; the server anchors, and from round 1 on prototypes."""
        down = (({"anchors": Field(("K", "d"))},), optional(class_vectors("K'")))
        return make_schema(task, up=((class_vectors("K_i"),),), down=down)

    def init_server(self, server: Server) -> Step:
        """Draw the anchors."""
        state = {"anchors": draw_anchors(server.num_classes, server.feature_dim)}
        return Step(state, state)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λ·MSE(z, a_y) + contrast·margin loss + calibration·CE(g(a), all classes)."""
        model, anchors = client.load(state), message["anchors"].to(client.device)  # (K, d)
        classes, delta = torch.arange(len(anchors), device=client.device), margin(anchors, state.get("prototypes"))

        def loss(z: Tensor, y: Tensor) -> Tensor:
            value = client.cross_entropy(model.head(z), y) + self.lam * mse_loss(z, anchors[y])
            value = value + self.contrast * margin_loss(z, y, anchors, delta)
            return value + self.calibration * client.cross_entropy(model.head(anchors), classes)

        return train_prototypes(client, model, loss, self.measured)

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Average per class, and move each anchor a_j whose class was received to decay·a_j + (1 − decay)·c_j."""
        sent = means_by_class(sums, server.feature_dim)
        anchors, classes = state["anchors"].clone(), sent["classes"]
        anchors[classes] = torch.lerp(anchors[classes], sent["prototypes"], 1 - self.decay)
        tensors = self.average(server, state, sums) | {"anchors": anchors}
        return Step(tensors, tensors)


def draw_anchors(num_classes: int, feature_dim: int) -> Tensor:
    """Draw non-negative anchors (K, d): normal numbers through two layers, with batch norm over several classes."""
    layers: list[nn.Module] = []
    for _ in range(2):
        norm = nn.BatchNorm1d(feature_dim) if num_classes > 1 else nn.Identity()
        layers += [nn.Linear(feature_dim, feature_dim), norm, nn.ReLU()]
    with torch.no_grad():
        anchors: Tensor = nn.Sequential(*layers)(torch.randn(num_classes, feature_dim))
    return anchors


def margin(anchors: Tensor, own: Tensor | None) -> float:
    """Compute δ, the larger mean nearest-neighbour distance of anchors (K, d) and own prototypes (K_i, d)."""
    groups = [group for group in (anchors, own) if group is not None and len(group) > 1]
    return max((float(margins(group).mean()) for group in groups), default=0.0)
