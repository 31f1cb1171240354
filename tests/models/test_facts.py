"""Facts about networks: where they are cut, how large they are, what they cost."""

import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.models.split import examine


def shifted(shape, feature_dim, num_classes):
    """6 → 4, at least −1, and a linear layer: 24 + 4 parameters, 24 multiplications."""
    return nn.Sequential(nn.Linear(6, 4), nn.Hardtanh(-1, 1), nn.Linear(4, 100))


def narrow(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Linear(6, feature_dim + 1), nn.Linear(feature_dim, num_classes))


def test_facts_by_hand():
    """Cut to d = 8 and K = 3: a head of 8 · 3 + 3 parameters; 6 · 4 + 8 · 3 multiplications in all."""
    facts = examine(shifted, (6,), 8, 3)
    assert facts.network.endswith("test_facts.py:shifted")
    assert (facts.layer, facts.width, facts.feature_dim) == ("2", 4, 8)
    assert (facts.base, facts.head, facts.macs) == (28, 27, 48)
    assert -1 <= facts.smallest < 0
    assert 0 < facts.negative < 1


def test_the_cnn_by_hand():
    """28² · 75 · 32 + 10² · 800 · 64 + 1600 · 512 + 512 · 10 multiplications."""
    facts = examine("cnn4", (3, 32, 32), 512, 10)
    assert facts.macs == 28 * 28 * 75 * 32 + 100 * 800 * 64 + 1600 * 512 + 5120
    assert (facts.layer, facts.width, facts.smallest, facts.negative) == ("head", 512, 0, 0)


def test_the_same_facts_twice_and_no_random_number_used():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert examine("plain", (1, 16, 16), 8, 3) == examine("plain", (1, 16, 16), 8, 3)
    assert torch.equal(torch.rand(1), expected)


def test_a_network_whose_features_have_another_width():
    with pytest.raises(ValueError, match=r"gives features \(16, 9\) for 16 samples; expected \(16, 8\)"):
        examine(narrow, (6,), 8, 3)
    with pytest.raises(ValueError, match=r"does not take samples of shape \(5,\)"):
        examine(narrow, (5,), 8, 3)
