"""Networks for vectors and for tokens."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.models import FAMILIES, MODELS
from protonorm.models.inputs import random_batch
from protonorm.models.light import TokenConvolution, TokenMean, mlp
from protonorm.models.split import examine


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


TEXT_NAMES = FAMILIES["text"].models


def build_for_text(name, length=6, vocabulary=50, feature_dim=8, classes=3):
    torch.manual_seed(0)
    return MODELS[name].load()((length, vocabulary), feature_dim, classes)


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_shapes(name):
    model = build_for_text(name)
    z = model.features(random_batch(4, (6, 50)))
    assert z.shape == (4, 8)
    assert model.head(z).shape == (4, 3)


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_padding_adds_nothing(name):
    """The same text in a longer row of zeros has the same features, and zeros get no gradient."""
    model = build_for_text(name).eval()
    short, long = torch.tensor([[7, 3, 9]]), torch.tensor([[7, 3, 9, 0, 0, 0, 0]])
    torch.testing.assert_close(model.features(short), model.features(long))
    model.features(long).sum().backward()
    assert not model.features[0].embedding.weight.grad[0].any()
    assert model.features[0].embedding.weight.grad[7].any()


def test_the_mean_by_hand():
    """Tokens 1 and 2 stand for (1, …) and (3, …): the mean is 2, once with and once without padding; none gives 0."""
    layer = TokenMean(4)
    with torch.no_grad():
        layer.embedding.weight.copy_(torch.tensor([0.0, 1.0, 3.0, 5.0])[:, None].expand(4, 64))
    found = layer(torch.tensor([[1, 2, 0, 0], [1, 2, 1, 2], [0, 0, 0, 0], [3, 0, 0, 0]]))
    assert found[:, 0].tolist() == [2, 2, 0, 5]


def test_only_the_mean_does_not_care_for_the_order():
    one, other = torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.tensor([[6, 2, 4, 1, 5, 3]])
    mean, convolution = TokenMean(50), TokenConvolution(50)
    torch.testing.assert_close(mean(one), mean(other))
    assert not torch.allclose(convolution(one), convolution(other))


def test_a_text_without_tokens_is_zeros():
    empty = torch.zeros(2, 5, dtype=torch.int64)
    assert not TokenConvolution(9)(empty).any()
    assert not TokenMean(9)(empty).any()


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_they_learn_which_word_is_there(name):
    """Token 1, 2 or 3 somewhere among seven others tells the class."""
    chance = torch.Generator().manual_seed(1)
    x = torch.randint(4, 50, (240, 8), generator=chance)
    y = torch.arange(240) % 3
    x[torch.arange(240), torch.randint(8, (240,), generator=chance)] = y + 1
    model = build_for_text(name, length=8)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(40):
        optimiser.zero_grad()
        cross_entropy(model(x[:180]), y[:180]).backward()
        optimiser.step()
    assert float((model.eval()(x[180:]).argmax(1) == y[180:]).float().mean()) > 0.8


@pytest.mark.parametrize("name", TEXT_NAMES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (5,)])
def test_what_is_no_text_is_refused(name, shape):
    with pytest.raises(ValueError, match=f"'{name}' takes tokens"):
        MODELS[name].load()(shape, 8, 3)


def test_facts_and_cuts_send_tokens():
    """A network of the user's own for texts is cut as others are."""
    assert examine("text_mean", (6, 50), 8, 3).feature_dim == 8
    network = torch.nn.Sequential(torch.nn.EmbeddingBag(50, 16), torch.nn.Linear(16, 100))
    assert pn.split(network, 8, 3, shape=(6, 50)).features(random_batch(2, (6, 50))).shape == (2, 8)
    assert random_batch(500, (6, 50)).unique().tolist() == list(range(50))
