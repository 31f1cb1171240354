"""Two networks for vectors, such as the rows of a table: one with more layers, one with more units.

Every hidden layer is normalised over the batch, and no ReLU follows the features, which may be negative: both for the
reasons that `light` gives.
"""

from __future__ import annotations

from torch import nn

from protonorm.core import SplitModel
from protonorm.models.inputs import vector_length

MOMENTUM = 0.2  # of the running statistics, as in `light`: a client may have few batches a round


def mlp_small(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build D → 64 → 64 → d, and d → K."""
    return perceptron(vector_length(shape, "mlp_small"), (64, 64), feature_dim, num_classes)


def mlp_wide(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build D → 512 → d, and d → K."""
    return perceptron(vector_length(shape, "mlp_wide"), (512,), feature_dim, num_classes)


def perceptron(inputs: int, hidden: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build hidden layers of some widths, then features and head; signals keep their size at the start."""
    layers: list[nn.Module] = []
    for width, following in zip((inputs, *hidden), hidden, strict=False):
        layers += [nn.Linear(width, following), nn.BatchNorm1d(following, momentum=MOMENTUM), nn.ReLU()]
    return finish(layers, hidden[-1], feature_dim, num_classes)


def finish(layers: list[nn.Module], width: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Put the decision layer behind layers that give (B, width)."""
    decision, head = nn.Linear(width, feature_dim), nn.Linear(feature_dim, num_classes)
    for layer in (decision, head):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        nn.init.zeros_(layer.bias)
    return SplitModel(nn.Sequential(*layers, decision), head)
