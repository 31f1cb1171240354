"""Four networks of different kinds for small pictures, made to be trained on one CPU core.

They agree in three things only. A convolution of stride 2 comes first, for most work is where maps are large. The last
maps, an eighth of the picture's side, are averaged, and a linear layer makes d features of them, which may be negative.
And the averages are normalised before: plain SGD with a small learning rate needs many more epochs otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from protonorm.core import SplitModel
from protonorm.models.pictures import count_channels
from protonorm.models.widths import scaled

MOMENTUM = 0.2  # of the running statistics: a client may have few batches a round, and 0.1 lags behind for many rounds


def plain(shape: tuple[int, ...], feature_dim: int, num_classes: int, width: float = 1.0) -> SplitModel:
    """Build a chain of 3×3 convolutions."""
    first, second, third, last = (scaled(channels, width) for channels in (24, 32, 64, 128))
    layers = [
        _convolution(count_channels(shape, "plain"), first, stride=2),  # 14×14 from 28×28
        _convolution(first, second),
        nn.MaxPool2d(2),
        _convolution(second, third),  # 7×7
        _convolution(third, last, stride=2),  # 4×4
    ]
    return _split(layers, last, feature_dim, num_classes)


def residual(shape: tuple[int, ...], feature_dim: int, num_classes: int, width: float = 1.0) -> SplitModel:
    """Build two residual blocks of two convolutions each."""
    first, second, last = (scaled(channels, width) for channels in (24, 48, 96))
    layers = [
        _convolution(count_channels(shape, "residual"), first, stride=2),
        Residual(first, second),  # 7×7
        Residual(second, last),  # 4×4
    ]
    return _split(layers, last, feature_dim, num_classes)


def depthwise(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build a chain of depthwise separable convolutions."""
    layers = [
        _convolution(count_channels(shape, "depthwise"), 32, stride=2),
        _separable(32, 64),
        nn.MaxPool2d(2),
        _separable(64, 128),  # 7×7
        nn.MaxPool2d(2, ceil_mode=True),
        _separable(128, 192),  # 4×4
    ]
    return _split(layers, 192, feature_dim, num_classes)


def dense(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build two densely connected blocks of three layers each."""
    layers = [
        _convolution(count_channels(shape, "dense"), 24, stride=2),
        nn.MaxPool2d(2),
        *(Dense(24, 24), Dense(48, 24), Dense(72, 24)),  # 7×7
        *(_activation(96), Pointwise(96, 64), nn.AvgPool2d(2, ceil_mode=True)),
        *(Dense(64, 32), Dense(96, 32), Dense(128, 32)),  # 4×4
        _activation(160),
    ]
    return _split(layers, 160, feature_dim, num_classes)


class Pointwise(nn.Linear):
    """A 1×1 convolution, which on channels_last pictures is a matrix product and nothing else."""

    def __init__(self, channels: int, out: int) -> None:
        """Mix C channels into `out`."""
        super().__init__(channels, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the channels of each point: (B, C, H, W) to (B, out, H, W)."""
        return linear(x.permute(0, 2, 3, 1), self.weight).permute(0, 3, 1, 2)


class Residual(nn.Module):
    """Two convolutions that halve the maps, and what they add to: the halved input."""

    def __init__(self, channels: int, out: int) -> None:
        """Turn C channels into `out`."""
        super().__init__()
        self.first = _convolution(channels, out, stride=2)
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, padding=1, bias=False), _norm(out))
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), Pointwise(channels, out), _norm(out))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, out, H/2, W/2)."""
        return relu(self.second(self.first(x)) + self.shortcut(x), inplace=True)


class Dense(nn.Module):
    """A convolution whose maps are put beside those it read."""

    def __init__(self, channels: int, growth: int) -> None:
        """Put `growth` maps beside C."""
        super().__init__()
        self.activation = _activation(channels)
        self.convolution = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C + growth, H, W)."""
        return torch.cat([x, self.convolution(self.activation(x))], dim=1)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, momentum=MOMENTUM)


def _activation(channels: int) -> nn.Sequential:
    return nn.Sequential(_norm(channels), nn.ReLU(inplace=True))


def _convolution(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), *_activation(out))


def _separable(channels: int, out: int) -> nn.Sequential:
    alone = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return nn.Sequential(alone, Pointwise(channels, out), *_activation(out))


def _split(layers: list[nn.Module], width: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Put the decision layer behind the layers, and draw all weights so that signals keep their size."""
    average = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(width, momentum=MOMENTUM)]
    decision, head = nn.Linear(width, feature_dim), nn.Linear(feature_dim, num_classes)
    for layer in nn.Sequential(*layers).modules():
        if isinstance(layer, nn.Conv2d | Pointwise):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    for layer in (decision, head):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        nn.init.zeros_(layer.bias)
    return SplitModel(nn.Sequential(*layers, *average, decision), head)
