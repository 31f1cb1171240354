"""What stands where a network was cut: any number of features becomes d, and nothing is learned."""

from __future__ import annotations

from torch import nn

from protonorm.core import SplitModel


class Cut(nn.AdaptiveAvgPool1d):
    """Give the L inputs of a decision layer as d features (B, d).

    Feature i is the mean of inputs floor(iL/d) to ceil((i+1)L/d) − 1: means of neighbours where d < L, which overlap
    unless d divides L, and repeated values where d > L.
    """

    def __init__(self, layer: str, width: int, feature_dim: int) -> None:
        super().__init__(feature_dim)
        self.layer = layer  # the name of the layer that stood here
        self.width = width  # L

    def extra_repr(self) -> str:
        """Say what is averaged to what."""
        return f"{self.layer!r}, {self.width} -> {self.output_size}"


def cut(base: nn.Module, layer: str, width: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Join a base that gives L features, the cut, and a new linear head."""
    return SplitModel(nn.Sequential(base, Cut(layer, width, feature_dim)), nn.Linear(feature_dim, num_classes))
