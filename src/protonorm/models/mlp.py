"""The network of the spiral experiment: features of few dimensions, which may be drawn."""

from __future__ import annotations

from torch import nn

from protonorm.core import SplitModel
from protonorm.models.inputs import vector_length


def mlp(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build D → 16 → 8 → 4 → d, and d → K without bias.

    No ReLU follows the features, so that they may be negative and prototypes may stand around the origin.
    """
    features = nn.Sequential(
        *(nn.Linear(vector_length(shape, "mlp"), 16), nn.ReLU()),
        *(nn.Linear(16, 8), nn.ReLU()),
        *(nn.Linear(8, 4), nn.ReLU()),
        nn.Linear(4, feature_dim),
    )
    return SplitModel(features, nn.Linear(feature_dim, num_classes, bias=False))
