"""Labels as people have them become numbers from 0, and names."""

import re

import numpy as np
import pytest

from protonorm.data.own.labels import encode_labels, named_labels, refuse_one_class


@pytest.mark.parametrize(
    ("given", "labels", "classes"),
    [
        ([7, 3, 3, 10, 7, 10], [1, 0, 0, 2, 1, 2], ("3", "7", "10")),  # by value, not by text
        ([2.0, -1.0, 2.0, -1.0], [1, 0, 1, 0], ("-1", "2")),
        (["dog", "cat", "dog", "cat"], [1, 0, 1, 0], ("cat", "dog")),
        ([True, False, True, False], [1, 0, 1, 0], ("False", "True")),
        (["dog", "dog"], [0, 0], ("dog",)),  # one site of several may have one class; experiments refuse it
    ],
)
def test_labels_are_numbered_in_their_order(given, labels, classes):
    found, names = encode_labels(np.array(given), "It")
    assert (found.tolist(), names) == (labels, classes)
    assert found.dtype == np.int64


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.arange(9), "9 different labels for 9 samples"),
        (np.array([0.5, 1.0, 1.0, 0.5]), "the label 0.5; expected classes"),
        (np.array([0.0, np.nan]), "NaN or infinite"),
        (np.zeros((2, 2), np.int64), "labels of shape (2, 2)"),
        (np.zeros(0, np.int64), "labels of shape (0,)"),
        (np.array([1e300, 0.0, 1e300, 0.0]), "the label 1e+300"),
    ],
)
def test_what_cannot_be_classes(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        encode_labels(given, "It")


@pytest.mark.parametrize(
    ("labels", "classes", "said"),
    [
        ([0, 2], ["a", "b"], "labels from 0 to 2, but 2 classes"),
        ([-1, 1], ["a", "b"], "labels from -1 to 1"),
        ([0, 0], [], "needs `classes` of different names"),
        ([0, 1], ["a", "a"], "needs `classes` of different names"),
        ([0, 1], [1, 2], "needs `classes` of different names"),
        ([0.0, 1.0], ["a", "b"], "type float64; expected numbers"),
    ],
)
def test_named_classes_that_do_not_fit(labels, classes, said):
    with pytest.raises(ValueError, match=said):
        named_labels(np.array(labels), np.array(classes), "It")


def test_an_experiment_needs_two_classes():
    with pytest.raises(ValueError, match=re.escape("It has one class only (cat); there is nothing to tell apart.")):
        refuse_one_class(["cat"], "It")
    refuse_one_class(["cat", "dog"], "It")


def test_named_classes_may_be_absent_from_the_labels():
    labels, names = named_labels(np.array([2, 0], np.uint8), np.array(["x", "y", "z"]), "It")
    assert (labels.tolist(), labels.dtype, names) == ([2, 0], np.int64, ("x", "y", "z"))
