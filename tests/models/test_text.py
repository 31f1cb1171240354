"""Networks for tokens: padding adds nothing, one of them knows no order, and both learn."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.models import FAMILIES, MODELS
from protonorm.models.facts import examine
from protonorm.models.inputs import random_batch
from protonorm.models.text import TokenConvolution, TokenMean

NAMES = FAMILIES["text"].models


def build(name, length=6, vocabulary=50, feature_dim=8, classes=3):
    torch.manual_seed(0)
    return MODELS[name].load()((length, vocabulary), feature_dim, classes)


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name):
    model = build(name)
    z = model.features(random_batch(4, (6, 50)))
    assert z.shape == (4, 8)
    assert model.head(z).shape == (4, 3)


@pytest.mark.parametrize("name", NAMES)
def test_padding_adds_nothing(name):
    """The same text in a longer row of zeros has the same features, and zeros get no gradient."""
    model = build(name).eval()
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


@pytest.mark.parametrize("name", NAMES)
def test_they_learn_which_word_is_there(name):
    """Token 1, 2 or 3 somewhere among seven others tells the class."""
    chance = torch.Generator().manual_seed(1)
    x = torch.randint(4, 50, (240, 8), generator=chance)
    y = torch.arange(240) % 3
    x[torch.arange(240), torch.randint(8, (240,), generator=chance)] = y + 1
    model = build(name, length=8)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(40):
        optimiser.zero_grad()
        cross_entropy(model(x[:180]), y[:180]).backward()
        optimiser.step()
    assert float((model.eval()(x[180:]).argmax(1) == y[180:]).float().mean()) > 0.8


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (5,)])
def test_other_samples_are_refused(name, shape):
    with pytest.raises(ValueError, match=f"'{name}' takes tokens"):
        MODELS[name].load()(shape, 8, 3)


def test_facts_and_cuts_send_tokens():
    """A network of the user's own for texts is cut as others are."""
    assert examine("text_mean", (6, 50), 8, 3).feature_dim == 8
    network = torch.nn.Sequential(torch.nn.EmbeddingBag(50, 16), torch.nn.Linear(16, 100))
    assert pn.split(network, 8, 3, shape=(6, 50)).features(random_batch(2, (6, 50))).shape == (2, 8)
    assert random_batch(500, (6, 50)).unique().tolist() == list(range(50))
