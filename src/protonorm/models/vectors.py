"""Networks for vectors and for texts as tokens (B, L).

Hidden layers are batch-normalised, and no ReLU follows the features, which may be negative; `light` explains why.
Token 0 pads short texts and is ignored.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from protonorm.core import SplitModel
from protonorm.models import scaled
from protonorm.models.inputs import token_count, vector_length
from protonorm.models.light import MOMENTUM, finish

EMBEDDED = 64  # embedding dimension of a token
HIDDEN = 64  # units of the hidden layer
MAPS = 48  # output channels of each convolution
WIDTHS = (3, 5)  # kernel sizes of the convolutions, in tokens


def mlp(shape: tuple[int, ...], feature_dim: int, num_classes: int, width: float = 1.0) -> SplitModel:
    """Build D → 16 → 8 → 4 → d, and d → K without bias.

    No ReLU follows the features, so that they may be negative and prototypes may lie around the origin.
    """
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
        there = (tokens != 0).unsqueeze(1)  # (B, 1, L)
        maps = torch.cat([convolution(vectors) for convolution in self.convolutions], dim=1).relu()  # (B, 96, L)
        return (maps * there).amax(2)
