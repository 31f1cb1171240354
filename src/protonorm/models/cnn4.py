"""The 4-layer CNN of the paper's homogeneous table: two convolutions and two linear layers."""

from __future__ import annotations

from torch import nn

from protonorm.core import SplitModel
from protonorm.models.cut import cut
from protonorm.models.pictures import channels

KERNEL, POOL = 5, 2


def cnn4(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build two 5×5 convolutions, each with ReLU and pooling, and a linear layer of 512 units: none is negative."""
    base = nn.Sequential(
        *(nn.Conv2d(channels(shape, "cnn4"), 32, KERNEL), nn.ReLU(), nn.MaxPool2d(POOL)),
        *(nn.Conv2d(32, 64, KERNEL), nn.ReLU(), nn.MaxPool2d(POOL)),
        *(nn.Flatten(), nn.Linear(64 * _side(shape[1]) * _side(shape[2]), 512), nn.ReLU()),
    )
    return cut(base, "head", 512, feature_dim, num_classes)


def _side(pixels: int) -> int:
    """Follow a side through both convolutions and poolings: 32 to 5, 64 to 13."""
    for _ in range(2):
        pixels = (pixels - KERNEL + 1) // POOL
    return pixels
