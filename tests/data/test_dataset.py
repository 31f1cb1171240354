"""A data set is checked where it is made, and fewer of its samples can be taken."""

import numpy as np
import pytest

import protonorm as pn
from protonorm.core.types import InputSpec
from protonorm.data.dataset import Dataset, public_digest, public_inputs, take_samples
from protonorm.data.prepared import Arrays, write_prepared


def pictures(count=4, height=3, width=5, channels=3):
    """Number all bytes of some pictures."""
    size = (count, height, width, channels)
    inputs = (np.arange(np.prod(size)) % 256).astype(np.uint8).reshape(size)
    return Dataset("numbered", inputs, np.arange(count) % 2, ("even", "odd"))


def vectors():
    """Make three points in the plane."""
    return Dataset("points", np.float32([[0, 1], [2, 3], [4, 5]]), np.array([1, 0, 1]), ("a", "b"))


def test_shape_is_what_a_network_gets():
    assert pictures().shape == (3, 3, 5)  # C, H, W
    assert vectors().shape == (2,)
    assert vectors().num_classes == 2


@pytest.mark.parametrize(
    ("inputs", "labels", "sentence"),
    [
        (np.zeros((2, 3, 3), np.uint8), np.zeros(2, np.int64), "expected uint8 pictures"),
        (np.zeros((2, 3, 3, 1), np.float32), np.zeros(2, np.int64), "expected uint8 pictures"),
        (np.zeros((2, 3), np.float64), np.zeros(2, np.int64), "type float64; expected"),
        (np.zeros((0, 3), np.float32), np.zeros(0, np.int64), "are empty"),
        (np.zeros((2, 0), np.float32), np.zeros(2, np.int64), "are empty"),
        (np.float32([[0, np.nan]]), np.zeros(1, np.int64), "NaN or infinite values, first in row 1"),
        (np.float32([[0, np.inf]]), np.zeros(1, np.int64), "NaN or infinite"),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.int64), "2 inputs but 3 labels"),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.int32), "expected int64"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 1), np.int64), "expected int64"),
        (np.zeros((2, 3), np.float32), np.array([0, 2]), "go from 0 to 2, but 2 classes"),
        (np.zeros((2, 3), np.float32), np.array([-1, 0]), "go from -1 to 0"),
        (np.array([[1, 2], [3, -1]]), np.zeros(2, np.int64), "tokens go from -1 to 3"),
        (np.zeros((2, 3), np.int64), np.zeros(2, np.int64), "a vocabulary of 1; expected .* of 2 to 262144"),
        (np.full((2, 3), 2**18), np.zeros(2, np.int64), "a vocabulary of 262145; expected"),
        (np.ones((2, 3), np.int32), np.zeros(2, np.int64), "type int32; expected"),
        (np.ones((2, 3, 4), np.int64), np.zeros(2, np.int64), "expected .* int64 tokens"),
    ],
)
def test_refuses_what_cannot_be_trained_on(inputs, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        Dataset("mine", inputs, labels, ("a", "b"))


@pytest.mark.parametrize("names", [np.array(["a", "b"]), np.array(["a", "b"], object), ["a", "b"], ("a", "b")])
def test_names_of_classes_come_in_any_sequence(names):
    data = Dataset("points", np.zeros((2, 2), np.float32), np.array([0, 1]), names)
    assert data.classes == ("a", "b")
    assert all(type(name) is str for name in data.classes)


@pytest.mark.parametrize("names", [None, (), []])
def test_classes_without_names_are_numbers(names):
    data = Dataset("points", np.zeros((3, 2), np.float32), np.array([0, 2, 2]), names)
    assert data.classes == ("0", "1", "2")
    assert data.num_classes == 3


@pytest.mark.parametrize("names", [np.array([0, 1]), [0, 1], "ab", 2, np.array("ab"), {"a": 0, "b": 1}, [["a"], ["b"]]])
def test_what_is_no_name_of_a_class_is_refused(names):
    with pytest.raises(ValueError, match="Data set 'points': classes has .*; expected the names of the classes"):
        Dataset("points", np.zeros((2, 2), np.float32), np.array([0, 1]), names)


def test_lists_and_labels_that_are_no_classes_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="inputs must be a numpy array, got a list"):
        Dataset("points", [[1.0, 2.0]], np.array([0]), ("a",))
    with pytest.raises(ValueError, match="labels must be a numpy array, got a list"):
        Dataset("points", np.zeros((1, 2), np.float32), [0], ("a",))
    with pytest.raises(ValueError, match="the labels go up to 20240101, and no classes are named"):
        Dataset("points", np.zeros((1, 2), np.float32), np.array([20240101]), None)
    with pytest.raises(ValueError, match="at most 1048576 numbers are taken along a side"):
        Dataset("points", np.zeros((1, 2**20 + 1), np.float32), np.array([0]), None)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_with_channels_first_are_recognised_and_the_fix_is_told(kind, channels):
    """uint8 (N, 3, H, W) would otherwise pass for pictures of three rows and W channels."""
    first = np.zeros((2, channels, 8, 9), kind)
    said = r"\(N, C, H, W\), which array\.transpose\(0, 2, 3, 1\) turns into \(N, H, W, C\)"
    with pytest.raises(ValueError, match=said):
        Dataset("turned", first, np.array([0, 1]))
    if kind is np.uint8:
        assert Dataset("right", first.transpose(0, 2, 3, 1), np.array([0, 1])).shape == (channels, 8, 9)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64, bool])
def test_a_split_of_any_integer_type_is_the_same_split(kind):
    points, labels = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    owner = np.array([0, 0, 1, 1])
    data = Dataset("owned", points, labels, None, owner, np.array([0, 1, 0, 1], kind))
    usual = Dataset("owned", points, labels, None, owner, np.array([0, 1, 0, 1], np.int8))
    assert (data.split.dtype, data.split.tolist()) == (np.int8, [0, 1, 0, 1])
    assert data.description() == usual.description()
    assert Dataset("owned", points, labels, None, owner.astype(np.int32)).owner.dtype == np.int64


def test_large_numbers_in_a_split_stay_what_they_are():
    """256 would wrap around to 0, and −256 too."""
    arguments = ("owned", np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]), None, np.zeros(4, np.int64))
    assert np.sign(Dataset(*arguments, np.array([0, 256, -256, 1])).split).tolist() == [0, 1, -1, 1]
    for wrong in (np.zeros(4), np.array(["train"] * 4), np.zeros(3, np.uint8)):
        with pytest.raises(ValueError, match="the split has shape .*; expected int8 numbers"):
            Dataset(*arguments, wrong)


def tokens(**more):
    return Dataset("texts", np.array([[4, 2], [9, 0]]), np.array([0, 1]), ("a", "b"), **more)


def test_tokens_have_a_vocabulary():
    """Those there are, 0 to 9, unless more is said; a network is made for (L, V)."""
    assert (tokens().vocabulary, tokens().shape) == (10, (2, 10))
    assert tokens(vocabulary=50).shape == (2, 50)
    assert tokens().description() != tokens(vocabulary=50).description()
    with pytest.raises(ValueError, match="tokens go from 0 to 9, of a vocabulary of 9"):
        tokens(vocabulary=9)
    with pytest.raises(ValueError, match="a vocabulary is for tokens"):
        Dataset("points", np.zeros((1, 2), np.float32), np.array([0]), ("a", "b"), vocabulary=9)


def test_the_kind_of_data_chooses_the_usual_networks():
    assert [data.models for data in (pictures(), vectors(), tokens())] == ["light", "tabular", "text"]
    assert pn.Experiment(dataset=vectors()).models == "tabular"
    assert pn.Experiment(dataset=tokens()).models == "text"
    assert pn.Experiment(dataset=vectors(), models="mlp").feature_dim == 2


def test_a_record_knows_what_a_network_is_made_for():
    """As a task does: (C, H, W), (D,) and (L, V)."""
    for shape, kind, vocabulary, made in (
        ((28, 20, 3), "uint8", None, (3, 28, 20)),
        ((7,), "float32", None, (7,)),
        ((6,), "int64", 40, (6, 40)),
    ):
        spec = InputSpec(shape=shape, type=kind, vocabulary=vocabulary)
        assert spec.network_shape == InputSpec(**spec.describe()).network_shape == made


def test_description_follows_the_content():
    one, other = pictures(), pictures()
    assert one.description() == other.description()
    other.inputs[0, 0, 0, 0] += 1
    assert one.description() != other.description()
    assert one.load() is one


@pytest.mark.parametrize("name", ["labels", "owner", "split", "official", "groups"])
def test_description_follows_every_array(name):
    """One number of each is another: another label, another owner, a test sample in place of a training one, …"""
    given = {
        "labels": np.array([0, 1, 0, 1]),
        "owner": np.array([0, 0, 1, 1]),
        "split": np.array([0, 1, 0, 1], np.int8),
    }
    given |= {"official": np.array([False, True, False, True]), "groups": np.array([0, 1, 0, 1])}
    other = given | {name: np.where(np.arange(4) == 3, 1 - given[name], given[name]).astype(given[name].dtype)}
    one, changed = (Dataset("own", pictures().inputs, classes=("even", "odd"), **arrays) for arrays in (given, other))
    assert one.description()["sha256"] != changed.description()["sha256"]


def test_each_class_gives_its_first_samples_in_proportion():
    """Six of class 0 and three of class 1: four of the one and two of the other make six."""
    labels = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0])
    assert take_samples(labels, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.bincount(labels[take_samples(labels, 6)]).tolist() == [4, 2]


def test_a_rare_class_is_never_left_out():
    labels = np.array([0] * 97 + [1, 2, 2])
    assert np.bincount(labels[take_samples(labels, 3)]).tolist() == [1, 1, 1]


def test_all_is_all():
    labels = np.random.default_rng(0).integers(0, 7, 100)
    assert take_samples(labels, 100).tolist() == list(range(100))


@pytest.mark.parametrize(("samples", "what"), [(11, "at most 10, got 11"), (1, "2 classes")])
def test_too_many_and_too_few_are_refused(samples, what):
    with pytest.raises(ValueError, match=what):
        take_samples(np.array([0, 1] * 5), samples)


def test_the_key_names_the_number_of_samples_only_if_it_is_not_all():
    assert pn.Experiment(dataset="fashion").model_dump(mode="json")["dataset"] == {"name": "fashion"}
    some = pn.Experiment(dataset={"name": "fashion", "samples": 50})
    assert some.model_dump(mode="json")["dataset"] == {"name": "fashion", "samples": 50}
    assert np.bincount(some.dataset.load().labels).tolist() == [5] * 10


def test_a_prepared_set_can_be_made_smaller_too(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    write_prepared(tmp_path / "cifar10.npz", Arrays(images, np.arange(8) % 2, np.zeros(8, np.int8), ("a", "b")))
    data = pn.Experiment(dataset={"name": "cifar10", "root": tmp_path, "samples": 4}, models="light").dataset
    np.testing.assert_array_equal(data.load().inputs, images[:4])
    assert (data.description()["samples"], data.description()["of"]) == (4, 8)


@pytest.mark.parametrize("name", ["spiral", "fashion"])
def test_data_of_the_package_can_be_public_inputs(name):
    """Spiral arms are computed, and have no description of their own."""
    assert public_digest(name) == public_digest(name)
    assert public_inputs(name) is public_inputs(name)


def test_public_inputs_are_known_by_their_content_whatever_their_file_is_called(tmp_path):
    for name, shift in (("own", 0), ("again", 0), ("other", 1)):
        images = pictures().inputs + np.uint8(shift)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.array([0, 1, 0, 1]))
    digests = [public_digest(f"npz:{tmp_path / name}.npz") for name in ("own", "again", "other")]
    assert digests[0] == digests[1] != digests[2]
