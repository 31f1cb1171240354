"""What holds for every way to deal samples out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protonorm.data import PARTITIONS
from protonorm.data.dirichlet import Dirichlet
from protonorm.data.partition import IID, by_class, class_counts, hand_out, partition, usual_least
from protonorm.data.pathological import Pathological

WAYS = st.one_of(
    st.builds(IID, seed=st.integers(0, 2**32 - 1)),
    st.builds(
        Dirichlet, alpha=st.floats(1e-3, 100), least=st.integers(1, 3), retries=st.just(20), seed=st.integers(0, 9)
    ),
    st.builds(Pathological, classes_per_client=st.integers(1, 6), seed=st.integers(0, 9)),
)


@st.composite
def labels(draw):
    """Draw labels of up to seven classes, some of them perhaps absent, in any order."""
    counts = draw(st.lists(st.integers(0, 60), min_size=1, max_size=7).filter(any))
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(len(counts)), counts))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(labels=labels(), clients=st.integers(1, 30), how=WAYS, train=st.floats(0.01, 0.99))
def test_nothing_is_lost_and_nothing_given_twice(labels, clients, how, train):
    """Either a sentence says why not, or the parts are a partition with something to train on for everybody."""
    try:
        parts = partition(labels, clients, how, train)
    except ValueError:
        return
    assert len(parts) == clients
    everything = np.concatenate([np.concatenate(part) for part in parts])
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(labels)))
    for part in parts:
        assert len(part.train) >= 1
        assert len(part.test) >= 1 or len(part.train) == 1


@settings(deadline=None, derandomize=True, max_examples=100)
@given(labels=labels(), clients=st.integers(1, 20), how=WAYS)
def test_same_seed_same_sorted_shares(labels, clients, how):
    try:
        one, other = how.assign(labels, clients), how.assign(labels, clients)
    except ValueError:
        return
    for share, again in zip(one, other, strict=True):
        np.testing.assert_array_equal(share, again)
        assert (np.diff(share) > 0).all()


def test_labels_are_left_alone():
    given_labels = np.repeat(np.arange(4), 50)
    for entry in PARTITIONS.values():
        entry.load()().assign(given_labels, 4)
    np.testing.assert_array_equal(given_labels, np.repeat(np.arange(4), 50))


@pytest.mark.parametrize(
    ("share", "train", "test"),
    [(1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 3, 1), (5, 3, 2), (10, 7, 3), (40, 30, 10), (1621, 1215, 406)],
)
def test_three_quarters_train(share, train, test):
    """⌈n/4⌉ test samples, except that one sample trains: ⌈1621/4⌉ = ⌈405.25⌉ = 406."""
    (part,) = partition(np.zeros(share, np.int64), 1, IID())
    assert (len(part.train), len(part.test)) == (train, test)


def test_split_is_mixed_and_depends_on_seed_and_client():
    """Both clients hold 0 … 99 of their own hundred; their splits differ from each other and from another seed's."""

    class Halves:
        def __init__(self, seed):
            self.seed = seed

        def assign(self, labels, clients):
            return np.split(np.arange(len(labels)), clients)

    first, second = partition(np.zeros(200, np.int64), 2, Halves(1))
    other, _ = partition(np.zeros(200, np.int64), 2, Halves(2))
    assert not (np.diff(first.train) > 0).all()
    assert set(first.test) != set(second.test - 100)
    assert set(first.test) != set(other.test)


def test_iid_is_even():
    shares = IID().assign(np.repeat(np.arange(10), 600), 7)
    assert sorted(len(share) for share in shares) == [857] * 6 + [858]
    counts = class_counts(np.repeat(np.arange(10), 600), shares, 10)
    assert counts.min() > 50  # 85.7 expected


def test_class_counts_by_hand():
    """Labels 0 1 1 2 0: positions 0, 1, 4 hold 0, 1, 0; positions 2, 3 hold 1, 2."""
    counts = class_counts(np.array([0, 1, 1, 2, 0]), [np.array([0, 1, 4]), np.array([2, 3])], 4)
    assert counts.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0]]


def test_hand_out_by_hand():
    """Class 0 is at 3 1 0 and gives one, two; class 1 is at 4 2 and gives two, none."""
    shares = hand_out([np.array([3, 1, 0]), np.array([4, 2])], np.array([[1, 2], [2, 0]]))
    assert [share.tolist() for share in shares] == [[2, 3, 4], [0, 1]]


def test_by_class_skips_absent_classes():
    assert [group.tolist() for group in by_class(np.array([5, 0, 5, 2]))] == [[1], [3], [0, 2]]


def test_usual_least():
    """10/(1 − 0.75) = 40; 6000/100/2 = 30; 10/8/2 < 1."""
    assert usual_least(60000, 20) == 40
    assert usual_least(6000, 100) == 30
    assert usual_least(10, 8) == 1


@pytest.mark.parametrize("how", [IID(), Dirichlet(), Pathological()])
def test_impossible_numbers_of_clients(how):
    with pytest.raises(ValueError, match="at most 3 clients are possible"):
        partition(np.array([0, 0, 1]), 4, how)
    with pytest.raises(ValueError, match="at least one client"):
        partition(np.array([0, 0, 1]), 0, how)


@pytest.mark.parametrize("train", [0.0, 1.0, -1.0, float("nan")])
def test_impossible_splits(train):
    with pytest.raises(ValueError, match="between 0 and 1"):
        partition(np.zeros(4, np.int64), 1, IID(), train)


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([[0, 1, 2]], "each of 2 clients"),
        ([[0, 1, 2], []], "each of 2 clients"),
        ([[0, 1], [1, 2]], "none of them twice"),
        ([[0, 1], [2, 3]], "from 0 to 2"),
        ([[0, 1], [-1]], "from 0 to 2"),
    ],
)
def test_own_partitions_are_checked(shares, sentence):
    class Own:
        seed = 1

        def assign(self, labels, clients):
            return [np.array(share, dtype=np.int64) for share in shares]

    with pytest.raises(ValueError, match=sentence):
        partition(np.zeros(3, np.int64), 2, Own())


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_out_of_range(seed):
    for entry in PARTITIONS.values():
        with pytest.raises(ValidationError):
            entry.load()(seed=seed)
