import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from protonorm.geometry import points as pairs
from protonorm.geometry.alignment import align
from protonorm.geometry.prototypes import (
    class_means,
    class_sums,
    closeness,
    distances,
    margins,
    means_of,
    vectors_by_class,
)
from tests.geometry.arrangements import drawn


def nearest(features, prototypes, classes):
    """Predict the class with the highest score."""
    return closeness(features, classes, prototypes, int(classes.max()) + 1).argmax(dim=1)


def test_class_means_by_hand():
    """Class 2 has (1, 2) and (3, 6), class 0 has (5, 5), class 1 nothing."""
    features = torch.tensor([[1.0, 2.0], [5.0, 5.0], [3.0, 6.0]])
    classes, means = class_means(features, torch.tensor([2, 0, 2]), 4)
    assert classes.tolist() == [0, 2]
    assert means.tolist() == [[5.0, 5.0], [2.0, 4.0]]
    assert (classes.dtype, means.dtype) == (torch.int64, torch.float32)


def test_class_sums_add_up_over_batches():
    features, labels = drawn(50, 3).float(), torch.arange(50) % 4
    sums, counts = torch.zeros(6, 3, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
    for batch in range(0, 50, 8):
        more, seen = class_sums(features[batch : batch + 8], labels[batch : batch + 8], 6)
        sums += more
        counts += seen
    classes, means = means_of(sums, counts)
    assert counts.tolist() == [13, 13, 12, 12, 0, 0]
    whole = class_means(features, labels, 6)
    assert torch.equal(classes, whole[0])
    assert torch.allclose(means.float(), whole[1])


def test_sums_are_kept_in_double_precision():
    """In float32, 2²⁴ + 1 is 2²⁴: the mean of (2²⁴, 1, 1, 2) would be 2²² and not 2²² + 1."""
    features = torch.tensor([[2.0**24], [1.0], [1.0], [2.0]])
    _, means = class_means(features, torch.zeros(4, dtype=torch.int64), 1)
    assert means.item() == 2**22 + 1


def test_no_samples_give_no_prototypes():
    classes, means = class_means(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 5)
    assert (classes.shape, means.shape) == ((0,), (0, 3))


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.ones(3, 2), torch.zeros(2, dtype=torch.int64), "do not fit"),
        (torch.ones(3), torch.zeros(3, dtype=torch.int64), "do not fit"),
        (torch.ones(1, 2), torch.tensor([4]), "between 0 and 3, but there is 4"),
        (torch.ones(1, 2), torch.tensor([-1]), "but there is -1"),
        (torch.ones(1, 2), torch.tensor([0.0]), "integer type"),
    ],
)
def test_labels_that_do_not_fit_are_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        class_means(features, labels, 4)


def test_nearest_by_hand():
    """(1, 0) is 1 from (0, 0) and 2 from (3, 0); (2, 0) is nearer to (3, 0)."""
    prototypes, classes = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([7, 4])
    features = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.5, 5.0]])
    assert nearest(features, prototypes, classes).tolist() == [7, 4, 4]  # the last is as near to both


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 8), st.integers(0, 1000))
def test_nearest_is_the_least_distance(batch, count, dimension, seed):
    features, prototypes = drawn(batch, dimension, seed), drawn(count, dimension, seed + 1)
    expected = cdist(features.numpy(), prototypes.numpy()).argmin(1)
    assert nearest(features, prototypes, torch.arange(count)).tolist() == expected.tolist()


@pytest.mark.parametrize("gamma", [1e-3, 1.0, 80.0, 400.0])
def test_the_nearest_unit_prototype_does_not_depend_on_gamma(gamma):
    """‖z − γĉ‖² = ‖z‖² + γ² − 2γ z·ĉ: least where z·ĉ is greatest, for every γ."""
    features, prototypes = 30 * drawn(200, 16), align(drawn(10, 16)).prototypes
    expected = (features @ prototypes.T).argmax(dim=1)
    assert torch.equal(nearest(features, gamma * prototypes, torch.arange(10)), expected)


def test_closeness_lays_scores_out_over_all_classes():
    features, prototypes = drawn(5, 3).float(), drawn(2, 3, seed=1).float()
    scores = closeness(features, torch.tensor([3, 1]), prototypes, 4)
    assert torch.isneginf(scores[:, [0, 2]]).all()
    squares = torch.cdist(features.double(), prototypes.double()) ** 2
    both = scores[:, [3, 1]] + squares
    assert torch.allclose(both[:, 0], both[:, 1])  # ‖z‖², the same for all classes
    assert torch.equal(scores.argmax(dim=1), torch.tensor([3, 1])[squares.argmin(dim=1)])


def test_features_and_prototypes_must_fit():
    for prototypes in (torch.ones(3, 5), torch.ones(4)):
        with pytest.raises(ValueError, match="shapes are"):
            nearest(torch.ones(2, 4), prototypes, torch.arange(len(prototypes)))


def test_without_prototypes_no_class_is_near():
    none = torch.zeros(0, dtype=torch.int64)
    assert torch.isneginf(closeness(torch.ones(2, 4), none, torch.ones(0, 4), 3)).all()


@pytest.mark.parametrize("block", [1 << 22, 40])
def test_distances_are_those_of_scipy(block, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK", block)
    points = 100 * drawn(17, 6) + 1e4
    assert np.allclose(distances(points).numpy(), pdist(points.numpy()), rtol=1e-12, atol=0)
    apart = cdist(points.numpy(), points.numpy()) + np.diag(np.full(17, np.inf))
    assert np.allclose(margins(points).numpy(), apart.min(1), rtol=1e-12, atol=0)


def test_tiny_distances_are_exact():
    """1e-12 apart at distance 5 from the third point: 2 − 2 c·c' would have no digit of it."""
    points = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    points[1, 1] += 2.0**-40
    assert distances(points)[0].item() == 2.0**-40
    assert distances(points)[1:].tolist() == pytest.approx([5.0, 5.0])
    assert distances(torch.ones(3, 2)).tolist() == [0.0, 0.0, 0.0]


def test_margins_by_hand():
    """At 0, 1 and 3 on a line, the nearest others are 1, 1 and 2 away."""
    points = torch.tensor([[0.0], [1.0], [3.0]])
    assert margins(points).tolist() == [1.0, 1.0, 2.0]
    assert margins(points).dtype == torch.float32


def test_a_single_prototype_has_no_distance_and_no_margin():
    alone = torch.ones(1, 3)
    assert distances(alone).shape == margins(alone).shape == (0,)


HELD = {"classes": torch.tensor([0, 2]), "prototypes": torch.ones(2, 4)}
UNFIT = {
    "no classes": ({"classes": None}, "their classes missing"),
    "classes that are no whole numbers": ({"classes": torch.ones(2)}, "their classes torch.float32"),
    "vectors of whole numbers": ({"prototypes": torch.ones(2, 4).long()}, "prototypes are torch.int64"),
    "fewer classes": ({"classes": torch.tensor([0])}, r"shape \(2, 4\), and their classes of \(1,\)"),
    "classes in a table": ({"classes": torch.zeros(2, 2).long()}, r"their classes of \(2, 2\)"),
    "one long vector": ({"prototypes": torch.ones(8)}, r"shape \(8,\)"),
    "narrow vectors": ({"prototypes": torch.ones(2, 3)}, r"\(2, 3\), .* and 4 numbers each"),
    "a class too many": ({"classes": torch.tensor([0, 3])}, "of classes from 0 to 3; .* whole numbers from 0 to 2"),
    "a class below zero": ({"classes": torch.tensor([-1, 2])}, "of classes from -1 to 2"),
}


def test_vectors_that_fit_their_classes_are_taken_as_they_are():
    classes, vectors = vectors_by_class(HELD, "prototypes", 3, 4)
    assert classes is HELD["classes"]
    assert vectors is HELD["prototypes"]
    assert (
        vectors_by_class({**HELD, "classes": torch.zeros(0).long(), "other": torch.ones(0, 7)}, "other", 3)[1].shape[1]
        == 7
    )


@pytest.mark.parametrize(("change", "said"), UNFIT.values(), ids=UNFIT)
def test_vectors_that_do_not_fit_their_classes_are_refused(change, said):
    held = {name: value for name, value in {**HELD, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=said):
        vectors_by_class(held, "prototypes", 3, 4)
