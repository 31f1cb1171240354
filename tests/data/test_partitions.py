"""Samples are assigned to clients, and each client's share is split."""

import hashlib
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.data import PARTITIONS
from protonorm.data.partitions import (
    IID,
    ClientIndex,
    Dirichlet,
    Parts,
    Pathological,
    assign_counts,
    default_least,
    group_by_class,
    partition,
)

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
    for way in (entry.load() for entry in PARTITIONS.values()):
        if not hasattr(way, "shares"):  # others need more than labels
            way().assign(given_labels, 4)
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
    labels = np.repeat(np.arange(10), 600)
    parts = partition(labels, 7, IID())
    assert sorted(parts.sizes().sum(1).tolist()) == [857] * 6 + [858]
    assert sum(parts.class_counts(labels, 10)).min() > 50  # 85.7 expected


def two_clients():
    """Client 0 trains on 0 and 1 and tests with 4; client 1 trains on 3 and 2 and tests with nothing."""
    return Parts.of([ClientIndex(np.array([0, 1]), np.array([4])), ClientIndex(np.array([3, 2]), np.array([], int))])


def test_class_counts_by_hand():
    """Labels 0 1 1 2 0: positions 0, 1 hold 0, 1; position 4 holds 0; positions 3, 2 hold 2, 1; class 3 is nowhere."""
    train, test = two_clients().class_counts(np.array([0, 1, 1, 2, 0]), 4)
    assert train.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]
    assert test.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]


def test_parts_by_hand():
    parts = two_clients()
    assert len(parts) == 2
    assert [[half.tolist() for half in part] for part in parts] == [[[0, 1], [4]], [[3, 2], []]]
    assert parts.sizes().tolist() == [[2, 1], [2, 0]]
    assert parts.index.tolist() == [0, 1, 4, 3, 2]
    assert parts.cuts.tolist() == [0, 2, 3, 5, 5]
    assert np.shares_memory(parts[1].train, parts.index)


@pytest.mark.parametrize("id", [-1, 2])
def test_clients_that_are_not_there(id):
    with pytest.raises(IndexError, match=f"There is no client {id}; there are clients 0 to 1"):
        two_clients()[id]


def test_ten_thousand_clients():
    """25,000 samples: half of the clients have three, two to train and one to test; the others have one of each."""
    labels = np.repeat(np.arange(5), 5000)
    parts = partition(labels, 10_000, IID())
    assert np.unique(parts.sizes(), axis=0, return_counts=True)[0].tolist() == [[1, 1], [2, 1]]
    assert parts.sizes().sum(0).tolist() == [15_000, 10_000]
    assert sum(parts.class_counts(labels, 5)).sum(0).tolist() == [5000] * 5


# Of all positions, client after client, for 20 clients of 10 × 600 samples. They must never change: runs of the same
# settings would train on other samples.
DIGESTS = {
    "iid": (IID(), "694f72b2f485a2fd"),
    "dirichlet": (Dirichlet(), "9d690cff65fc5f35"),
    "dirichlet of another seed": (Dirichlet(alpha=0.5, least=10, seed=7), "d31a9b093d613ea7"),
    "pathological": (Pathological(), "a1a079616cfa62db"),
    "pathological of another seed": (Pathological(classes_per_client=5, seed=7), "2821f0d7c8d9d95a"),
}


@pytest.mark.parametrize(("how", "digest"), DIGESTS.values(), ids=DIGESTS)
def test_parts_never_change(how, digest):
    parts = partition(np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600)), 20, how)
    content = parts.index.astype("<i8").tobytes() + parts.cuts.astype("<i8").tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_assign_counts_by_hand():
    """Class 0 is at 3 1 0 and gives one, two; class 1 is at 4 2 and gives two, none."""
    shares = assign_counts([np.array([3, 1, 0]), np.array([4, 2])], np.array([[1, 2], [2, 0]]))
    assert [share.tolist() for share in shares] == [[2, 3, 4], [0, 1]]


def test_absent_classes_are_skipped():
    assert [group.tolist() for group in group_by_class(np.array([5, 0, 5, 2]))] == [[1], [3], [0, 2]]


def test_default_least():
    """10/(1 − 0.75) = 40; 6000/100/2 = 30; 10/8/2 < 1."""
    assert default_least(60000, 20) == 40
    assert default_least(6000, 100) == 30
    assert default_least(10, 8) == 1


@pytest.mark.parametrize("how", [IID(), Dirichlet(), Pathological()])
def test_impossible_numbers_of_clients(how):
    with pytest.raises(ValueError, match="at most 3 clients are possible"):
        partition(np.array([0, 0, 1]), 4, how)
    with pytest.raises(ValueError, match="clients must be at least 1, got 0"):
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
        ([[0, 1], [0.5]], "whole numbers"),
    ],
)
def test_own_partitions_are_checked(shares, sentence):
    class Own:
        seed = 1

        def assign(self, labels, clients):
            return [np.array(share, dtype=None if share else int) for share in shares]

    with pytest.raises(ValueError, match=sentence):
        partition(np.zeros(3, np.int64), 2, Own())


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_out_of_range(seed):
    for entry in PARTITIONS.values():
        with pytest.raises(ValueError, match=" must .*, got "):
            entry.load()(seed=seed)


def test_positions_of_other_whole_numbers_are_taken():
    class Own:
        seed = 1

        def assign(self, labels, clients):
            return [np.array([0, 2], np.uint8), np.array([1], np.int32)]

    parts = partition(np.zeros(3, np.int64), 2, Own())
    assert parts.index.dtype == np.int64
    assert sorted(parts.index.tolist()) == [0, 1, 2]


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
    with pytest.raises(ValueError, match="must be at most 3, the number of classes, got 4"):
        counts(3, 10, 6, Pathological(4))


def test_classes_too_small_for_their_clients():
    with pytest.raises(ValueError, match="A class of 2 samples is too small for the 3 clients"):
        Pathological(1).assign(np.array([0, 0, 1, 1, 1, 1, 1]), 6)
