"""The spiral's network."""

import pytest
import torch
from torch import nn

from protonorm.models.mlp import mlp


def test_five_linear_layers():
    """2 → 16 → 8 → 4 → 2 → 6: 48 + 136 + 36 + 10 weights and biases, and 12 weights without bias."""
    model = mlp((2,), 2, 6)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(2, 16), (16, 8), (8, 4), (4, 2), (2, 6)]
    assert sum(weight.numel() for weight in model.parameters()) == 48 + 136 + 36 + 10 + 12
    assert sum(isinstance(layer, nn.ReLU) for layer in model.modules()) == 3
    assert isinstance(model.features[-1], nn.Linear)
    assert model.head.bias is None


@pytest.mark.parametrize(("inputs", "feature_dim"), [(2, 2), (7, 64), (1, 512)])
def test_other_widths(inputs, feature_dim):
    model = mlp((inputs,), feature_dim, 3)
    assert model.features(torch.randn(5, inputs)).shape == (5, feature_dim)
    assert model(torch.randn(5, inputs)).shape == (5, 3)


def test_pictures_are_refused():
    with pytest.raises(ValueError, match="takes vectors"):
        mlp((1, 28, 28), 2, 6)
