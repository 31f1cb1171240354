"""Networks for vectors: what they are made of, and that they learn."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protonorm.models import FAMILIES, MODELS

NAMES = FAMILIES["tabular"].models


def build(name, inputs=5, feature_dim=64, classes=3):
    torch.manual_seed(0)
    return MODELS[name].load()((inputs,), feature_dim, classes)


@pytest.mark.parametrize(("name", "widths"), [("mlp_small", [5, 64, 64, 64, 3]), ("mlp_wide", [5, 512, 64, 3])])
def test_layers(name, widths):
    """A linear layer from each width to the next; batch norm and ReLU after the hidden ones, nothing after features."""
    model = build(name)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [linear[0].in_features, *(layer.out_features for layer in linear)] == widths
    assert [type(layer) for layer in model.features] == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * (len(widths) - 3) + [
        nn.Linear
    ]
    assert isinstance(model.head, nn.Linear)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_signals_keep_their_size_and_may_be_negative(name):
    """The mean square of ReLU(N(0, 1)) is ½, and weights of variance 1/inputs keep it, for features and for logits."""
    model = build(name, inputs=200, classes=100).train()
    z = model.features(torch.randn(500, 200))
    assert float(z.square().mean()) == pytest.approx(0.5, rel=0.25)
    assert float(model.head(z).square().mean()) == pytest.approx(0.5, rel=0.25)
    assert float((z < 0).float().mean()) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_they_learn_what_no_line_separates(name):
    """Whether two numbers have the same sign: a linear classifier is right in half of the cases."""
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = build(name, inputs=2, classes=2)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(60):
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
    assert float((model.eval()(x).argmax(1) == y).float().mean()) > 0.9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (64, 4096)])
def test_other_samples_are_refused(name, shape):
    with pytest.raises(ValueError, match=f"'{name}' takes vectors"):
        MODELS[name].load()(shape, 8, 3)
