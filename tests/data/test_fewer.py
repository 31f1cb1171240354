"""Fewer samples: every class keeps its share, and the key says so."""

import numpy as np
import pytest

import protonorm as pn
from protonorm.data.fewer import fewer
from protonorm.data.prepared import Arrays, write_prepared


def test_each_class_gives_its_first_samples_in_proportion():
    """Six of class 0 and three of class 1: four of the one and two of the other make six."""
    labels = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0])
    assert fewer(labels, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.bincount(labels[fewer(labels, 6)]).tolist() == [4, 2]


def test_a_rare_class_is_never_left_out():
    labels = np.array([0] * 97 + [1, 2, 2])
    assert np.bincount(labels[fewer(labels, 3)]).tolist() == [1, 1, 1]


def test_all_is_all():
    labels = np.random.default_rng(0).integers(0, 7, 100)
    assert fewer(labels, 100).tolist() == list(range(100))


@pytest.mark.parametrize(("samples", "what"), [(11, "has 10"), (1, "2 classes")])
def test_too_many_and_too_few_are_refused(samples, what):
    with pytest.raises(ValueError, match=what):
        fewer(np.array([0, 1] * 5), samples)


def test_the_key_of_all_samples_is_as_before_and_that_of_fewer_another(tmp_path):
    assert pn.Experiment(dataset="fashion").model_dump(mode="json")["dataset"] == {"name": "fashion"}
    some = pn.Experiment(dataset={"name": "fashion", "samples": 50})
    assert some.model_dump(mode="json")["dataset"] == {"name": "fashion", "samples": 50}
    assert np.bincount(some.dataset.load().labels).tolist() == [5] * 10


def test_a_prepared_set_can_be_cut_too(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    write_prepared(tmp_path / "cifar10.npz", Arrays(images, np.arange(8) % 2, np.zeros(8, np.int8), ("a", "b")))
    data = pn.Experiment(dataset={"name": "cifar10", "root": tmp_path, "samples": 4}, models="light").dataset
    np.testing.assert_array_equal(data.load().inputs, images[:4])
    assert (data.description()["samples"], data.description()["of"]) == (4, 8)
