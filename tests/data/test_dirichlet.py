"""The Dirichlet partition against the authors' stored one, and where it cannot work."""

import numpy as np
import pytest

from protonorm.data.partitions.base import partition
from protonorm.data.partitions.dirichlet import Dirichlet


def counts(classes, each, clients, how, order=None):
    """Assign a balanced data set and count, (M, K)."""
    labels = np.repeat(np.arange(classes), each)
    labels = labels if order is None else order.permutation(labels)
    return sum(partition(labels, clients, how).class_counts(labels, classes))


@pytest.mark.parametrize("order", [None, np.random.default_rng(7)])
def test_is_the_partition_of_the_authors(order):
    """Exact integers of the CIFAR-10 partition (M = 20, α = 0.1, seed 1), whatever the order of the labels."""
    table = counts(10, 6000, 20, Dirichlet(), order)
    assert table.sum(1).tolist() == [
        *(1621, 1814, 1211, 2080, 5128, 4264, 1440, 2622, 2974, 3236),
        *(1164, 1964, 5994, 1527, 3100, 4325, 4252, 3175, 5449, 2660),
    ]
    assert (table > 0).sum(1).tolist() == [7, 6, 4, 6, 2, 2, 5, 7, 6, 3, 4, 8, 6, 6, 4, 6, 5, 1, 4, 10]
    assert table[0].tolist() == [0, 9, 0, 668, 476, 287, 5, 167, 0, 9]


def test_classes_held_in_a_hundred():
    """CIFAR-100: the numbers of classes of the clients add up to 921."""
    table = counts(100, 600, 20, Dirichlet())
    assert (table > 0).sum() == 921
    assert (table > 0).sum(1)[-1] == 99  # what rounding leaves goes to the last client


def test_members_are_mixed_before_they_are_cut():
    """A client's samples of a class are spread over it, not one run of neighbours."""
    labels = np.zeros(1000, np.int64)
    first = Dirichlet(alpha=100.0).assign(labels, 2)[0]
    assert first[0] < 50
    assert first[-1] > 950


@pytest.mark.parametrize("alpha", [1e-3, 1e-8, 1e-320])
def test_tiny_alpha_gives_whole_classes(alpha):
    """The limit of α → 0: a class has one owner; draws that underflow do not end in NaN."""
    table = counts(100, 30, 10, Dirichlet(alpha=alpha, least=1))
    assert table.sum() == 3000
    assert (table.max(0) >= 29).mean() > 0.9


def test_huge_alpha_is_even():
    """Where α → ∞ all shares are 1/M."""
    table = counts(10, 1000, 10, Dirichlet(alpha=1e6))
    assert abs(table[:-1] - 100).max() <= 2


def test_draws_again_until_everybody_has_enough():
    """Seed 1 leaves somebody with fewer than 40 in the first two draws of 10 × 600 for twenty clients."""
    with pytest.raises(ValueError, match="in 2 draws"):
        counts(10, 600, 20, Dirichlet(retries=2))
    assert counts(10, 600, 20, Dirichlet(retries=3)).sum(1).min() >= 40
    assert counts(10, 600, 20, Dirichlet(least=10)).sum(1).min() >= 10


def test_gives_up_with_advice():
    with pytest.raises(ValueError, match=r"alpha=0.01 .* 5 draws; .* larger alpha, fewer clients"):
        counts(10, 100, 20, Dirichlet(alpha=0.01, retries=5))
    with pytest.raises(ValueError, match=r"at most 10 clients"):
        counts(10, 100, 20, Dirichlet(least=100))


def test_advice_works():
    """The number of samples that the best draw left is reachable with the same seed and retries."""
    with pytest.raises(ValueError, match=r"or least=(\d+)") as caught:
        counts(10, 600, 50, Dirichlet(retries=50))
    least = int(str(caught.value).split("least=")[1].rstrip("."))
    assert counts(10, 600, 50, Dirichlet(least=least, retries=50)).sum(1).min() >= least
