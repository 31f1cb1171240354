"""Few classes for each client, in blocks."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.data.partitions.base import partition
from protonorm.data.partitions.pathological import Pathological


def counts(classes, each, clients, how):
    """Assign a balanced data set and count, (M, K)."""
    labels = np.repeat(np.arange(classes), each)
    return sum(partition(labels, clients, how).class_counts(labels, classes))


def test_blocks_of_the_paper():
    """CIFAR-10, M = 20, two classes each: ⌈20·2/10⌉ = 4 clients a class; 0–3 hold classes 0, 1; 4–7 hold 2, 3; …"""
    table = counts(10, 6000, 20, Pathological())
    np.testing.assert_array_equal(table > 0, np.kron(np.eye(5), np.ones((4, 2))) > 0)


def test_sizes_are_unequal():
    """All but the last of a block hold between a tenth of 6000/4 = 1500 and 1500; the last holds the rest."""
    table = counts(10, 6000, 20, Pathological())
    held = table[table > 0].reshape(5, 4, 2)
    assert ((held[:, :3] >= 150) & (held[:, :3] < 1500)).all()
    assert (held[:, 3] >= 1500).all()
    assert len(np.unique(held)) > 30


@settings(deadline=None, derandomize=True, max_examples=200)
@given(classes=st.integers(1, 12), clients=st.integers(1, 30), each=st.integers(1, 12))
def test_same_clients_as_one_by_one(classes, clients, each):
    """Follow the rule class by class: the first ⌈M·c/K⌉ clients that have fewer than c classes take it."""
    if each > classes:
        return
    left, takes = [each] * clients, np.zeros((clients, classes), bool)
    for k in range(classes):
        for client in [i for i in range(clients) if left[i]][: math.ceil(clients * each / classes)]:
            left[client] -= 1
            takes[client, k] = True
    if takes.any(0).all():
        table = counts(classes, 40, clients, Pathological(each))
        np.testing.assert_array_equal(table > 0, takes)
        assert table.any(1).all()
    else:
        with pytest.raises(ValueError, match="leave"):
            counts(classes, 40, clients, Pathological(each))


def test_lost_classes_are_refused_with_advice_that_works():
    """102 classes on 20 × 10 places: ⌈200/102⌉ = 2 clients a class, ten blocks of ten classes, two left over."""
    with pytest.raises(ValueError, match="leave 2 of 102 classes") as caught:
        counts(102, 80, 20, Pathological(10))
    fitting, larger = map(int, re.findall(r"=(\d+)", str(caught.value))[-2:])
    counts(102, 80, 20, Pathological(fitting))
    counts(102, 80, larger, Pathological(10))


def test_more_classes_than_there_are():
    with pytest.raises(ValueError, match="only 3 classes"):
        counts(3, 10, 6, Pathological(4))


def test_classes_too_small_for_their_clients():
    with pytest.raises(ValueError, match="A class of 2 samples is too small for the 3 clients"):
        Pathological(1).assign(np.array([0, 0, 1, 1, 1, 1, 1]), 6)
