"""Small networks for images, for vectors and for texts as tokens (B, L), designed for training on a single CPU core.

Four of different architectures for images share three properties. The first convolution has stride 2, because most
computation is on large maps. The last maps, an eighth of the image's side, are averaged, and a linear layer maps them
to d features, which may be negative. The averages are batch-normalised first: otherwise plain SGD with a small learning
rate needs many more epochs. Hidden layers for vectors and texts are batch-normalised likewise, and no ReLU follows the
features. Token 0 pads short texts and is ignored.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from protonorm.core import SplitModel
from protonorm.models import scaled
from protonorm.models.inputs import count_channels, token_count, vector_length

EMBEDDED = 64  # embedding dimension of a token
HIDDEN = 64  # units of the hidden layer
MAPS = 48  # output channels of each convolution
WIDTHS = (3, 5)  # kernel sizes of the convolutions, in tokens
MOMENTUM = 0.2  # of the running statistics: with few batches per round, 0.1 lags behind for many rounds


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
    """1×1 convolution, computed as a matrix product on channels_last images."""

    def __init__(self, channels: int, out: int) -> None:
        """Create a layer from C to `out` channels."""
        super().__init__(channels, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map the channels of each point: (B, C, H, W) to (B, out, H, W)."""
        return linear(x.permute(0, 2, 3, 1), self.weight).permute(0, 3, 1, 2)


class Residual(nn.Module):
    """Residual block: two convolutions that halve the maps, plus a shortcut with the halved input."""

    def __init__(self, channels: int, out: int) -> None:
        """Create a block from C to `out` channels."""
        super().__init__()
        self.first = _convolution(channels, out, stride=2)
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, padding=1, bias=False), _norm(out))
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), Pointwise(channels, out), _norm(out))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, out, H/2, W/2)."""
        return relu(self.second(self.first(x)) + self.shortcut(x), inplace=True)


class Dense(nn.Module):
    """Dense layer: a convolution whose output maps are concatenated to its input maps."""

    def __init__(self, channels: int, growth: int) -> None:
        """Create a layer that adds `growth` maps to C."""
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


def _split(maps: list[nn.Module], width: int, feature_dim: int, num_classes: int) -> SplitModel:
    average = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(width, momentum=MOMENTUM)]
    return finish([*maps, *average], width, feature_dim, num_classes)


def finish(layers: list[nn.Module], width: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Append features and head to layers that return (B, width), initialised to preserve the variance of signals."""
    decision, head = nn.Linear(width, feature_dim), nn.Linear(feature_dim, num_classes)
    for layer in nn.Sequential(*layers).modules():
        if isinstance(layer, nn.Conv2d | Pointwise):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    for layer in (decision, head):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        nn.init.zeros_(layer.bias)
    return SplitModel(nn.Sequential(*layers, decision), head)


def mlp(shape: tuple[int, ...], feature_dim: int, num_classes: int, width: float = 1.0) -> SplitModel:
    """Build D → 16 → 8 → 4 → d without a last ReLU: prototypes lie around the origin; d → K without bias."""
    units = (vector_length(shape, "mlp"), *(scaled(units, width) for units in (16, 8, 4)))
    hidden = [layer for widths in pairwise(units) for layer in (nn.Linear(*widths), nn.ReLU())]
    features = nn.Sequential(*hidden, nn.Linear(units[-1], feature_dim))
    return SplitModel(features, nn.Linear(feature_dim, num_classes, bias=False))


def mlp_small(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build D → 64 → 64 → d, and d → K."""
    return perceptron(vector_length(shape, "mlp_small"), (64, 64), feature_dim, num_classes)


def mlp_wide(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build D → 512 → d, and d → K."""
    return perceptron(vector_length(shape, "mlp_wide"), (512,), feature_dim, num_classes)


def perceptron(inputs: int, hidden: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build hidden layers of given widths, features and head."""
    layers = [layer for widths in pairwise((inputs, *hidden)) for layer in _hidden(*widths)]
    return finish(layers, hidden[-1], feature_dim, num_classes)


def _hidden(width: int, units: int) -> list[nn.Module]:
    return [nn.Linear(width, units), nn.BatchNorm1d(units, momentum=MOMENTUM), nn.ReLU()]


def text_mean(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build the mean of token embeddings, then 64 → 64 → d, and d → K."""
    pooled = TokenMean(token_count(shape, "text_mean"))
    layers = [pooled, nn.BatchNorm1d(EMBEDDED, momentum=MOMENTUM), *_hidden(EMBEDDED, HIDDEN)]
    return finish(layers, HIDDEN, feature_dim, num_classes)


def text_cnn(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build convolutions over 3 and 5 tokens with max pooling over the text, then 96 → d, and d → K."""
    pooled = TokenConvolution(token_count(shape, "text_cnn"))
    width = MAPS * len(WIDTHS)
    return finish([pooled, nn.BatchNorm1d(width, momentum=MOMENTUM)], width, feature_dim, num_classes)


class TokenMean(nn.Module):
    """Mean of the embeddings of a text's tokens."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDED, padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, L) to (B, 64); a text without tokens gives zeros."""
        count = (tokens != 0).sum(1, keepdim=True).clamp(min=1)  # (B, 1)
        vectors: Tensor = self.embedding(tokens)  # (B, L, 64), zeros for padding
        return vectors.sum(1) / count


class TokenConvolution(nn.Module):
    """Maximum over the text of convolutions over neighbouring tokens."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDED, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(EMBEDDED, MAPS, width, padding=width // 2) for width in WIDTHS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, L) to (B, 96); padding is ignored."""
        vectors = self.embedding(tokens).transpose(1, 2)  # (B, 64, L)
        present = (tokens != 0).unsqueeze(1)  # (B, 1, L)
        maps = torch.cat([convolution(vectors) for convolution in self.convolutions], dim=1).relu()  # (B, 96, L)
        return (maps * present).amax(2)
