"""The network of the spiral experiment: features of few dimensions, which may be drawn."""

from __future__ import annotations

from torch import nn

from protonorm.core import SplitModel
from protonorm.models.inputs import vector_length
from protonorm.models.widths import scaled


def mlp(shape: tuple[int, ...], feature_dim: int, num_classes: int, width: float = 1.0) -> SplitModel:
    """Build D → 16 → 8 → 4 → d, and d → K without bias.

    No ReLU follows the features, so that they may be negative and prototypes may stand around the origin.
    """
    first, second, third = (scaled(units, width) for units in (16, 8, 4))
    features = nn.Sequential(
        *(nn.Linear(vector_length(shape, "mlp"), first), nn.ReLU()),
        *(nn.Linear(first, second), nn.ReLU()),
        *(nn.Linear(second, third), nn.ReLU()),
        nn.Linear(third, feature_dim),
    )
    return SplitModel(features, nn.Linear(feature_dim, num_classes, bias=False))
