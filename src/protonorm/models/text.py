"""Two networks for texts as tokens (B, L): what order words have does not matter to the one, and does to the other.

Token 0 fills up short texts, and adds nothing. What is pooled is normalised over the batch, as in `light`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protonorm.core import SplitModel
from protonorm.models.inputs import token_count
from protonorm.models.tabular import MOMENTUM, finish

EMBEDDED = 64  # numbers that stand for a token
HIDDEN = 64  # units of the hidden layer
MAPS = 48  # of each convolution
WIDTHS = (3, 5)  # tokens that a convolution sees


def text_mean(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Average the vectors of a text's tokens; then 64 → 64 → d, and d → K."""
    pooled = TokenMean(token_count(shape, "text_mean"))
    hidden = [nn.Linear(EMBEDDED, HIDDEN), nn.BatchNorm1d(HIDDEN, momentum=MOMENTUM), nn.ReLU()]
    return finish([pooled, _norm(EMBEDDED), *hidden], HIDDEN, feature_dim, num_classes)


def text_cnn(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Convolve over three and over five tokens, take the largest answer of each map; then 96 → d, and d → K."""
    pooled = TokenConvolution(token_count(shape, "text_cnn"))
    width = MAPS * len(WIDTHS)
    return finish([pooled, _norm(width)], width, feature_dim, num_classes)


class TokenMean(nn.Module):
    """The mean of the vectors that stand for a text's tokens."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDED, padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (B, L) to (B, 64); a text without tokens to zeros."""
        count = (tokens != 0).sum(1, keepdim=True).clamp(min=1)  # (B, 1)
        vectors: Tensor = self.embedding(tokens)  # (B, L, 64), zeros for padding
        return vectors.sum(1) / count


class TokenConvolution(nn.Module):
    """The largest answers of convolutions over neighbouring tokens."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDED, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(EMBEDDED, MAPS, width, padding=width // 2) for width in WIDTHS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (B, L) to (B, 96); places of padding do not count."""
        vectors = self.embedding(tokens).transpose(1, 2)  # (B, 64, L)
        there = (tokens != 0).unsqueeze(1)  # (B, 1, L)
        maps = torch.cat([convolution(vectors) for convolution in self.convolutions], dim=1).relu()  # (B, 96, L)
        return (maps * there).amax(2)


def _norm(width: int) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(width, momentum=MOMENTUM)
