"""Arrays of vectors and of tokens of one's own by one setting: what they become, and what is refused."""

import re

import numpy as np
import pytest

import protonorm as pn
from protonorm.data.own.datasets import Array, Npz, Text


def saved(tmp_path, **arrays):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", ["inputs", "features"])
def test_an_array(tmp_path, name):
    path = saved(tmp_path, **{name: np.array([[1.0, 7], [3, 7], [1, 7], [3, 7]])}, labels=np.array([5, 9, 5, 9]))
    data = Array(path).load()
    assert data.inputs.tolist() == [[-1, 0], [1, 0], [-1, 0], [1, 0]]
    assert data.inputs.dtype == np.float32
    assert (data.labels.tolist(), data.classes) == ([0, 1, 0, 1], ("5", "9"))
    assert Array(path, standardise=False).load().inputs[0].tolist() == [1, 7]
    assert pn.Experiment.of({"dataset": f"array:{path}"}).models == "tabular"


def test_named_classes_of_an_array(tmp_path):
    path = saved(tmp_path, inputs=np.ones((2, 1)), labels=np.array([2, 0]), classes=np.array(["a", "b", "c"]))
    assert Array(path).load().classes == ("a", "b", "c")


def test_tokens(tmp_path):
    path = saved(tmp_path, tokens=np.array([[4, 9, 0], [1, 0, 0]], np.uint16), labels=np.array(["x", "y"]))
    data = Text(path).load()
    assert data.inputs.tolist() == [[4, 9, 0], [1, 0, 0]]
    assert (data.inputs.dtype, data.vocabulary, data.shape) == (np.int64, 10, (3, 10))
    assert data.classes == ("x", "y")
    assert Text(path).description()["vocabulary"] == 10
    assert pn.Experiment.of({"dataset": f"text:{path}"}).models == "text"


GOOD = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("kind", "arrays", "said"),
    [
        (Array, {"labels": GOOD}, "cannot be used as vectors: it lacks inputs or features"),
        (Array, {"inputs": np.ones((4, 2))}, "it lacks labels"),
        (
            Array,
            {"inputs": np.ones(4), "labels": GOOD},
            "inputs has shape (4,) and type float64; expected",
        ),
        (Array, {"inputs": np.ones((4, 8, 8, 3), np.uint8), "labels": GOOD}, "dataset=npz:PATH takes pictures"),
        (Array, {"inputs": np.full((4, 2), "x"), "labels": GOOD}, "expected numbers (N, D)"),
        (Array, {"inputs": np.ones((4, 2), complex), "labels": GOOD}, "expected numbers (N, D)"),
        (Array, {"inputs": np.ones((0, 2)), "labels": GOOD[:0]}, "inputs has shape (0, 2)"),
        (Array, {"inputs": np.ones((3, 2)), "labels": GOOD}, "labels has shape (4,); expected (3,)"),
        (Array, {"inputs": np.array([[0, 1], [1, np.nan]] * 2), "labels": GOOD}, "too large numbers, such as in row 2"),
        (Array, {"inputs": np.ones((4, 2)), "labels": np.zeros(4)}, "one class only (0)"),
        (Array, {"inputs": np.array([[1], [2, 3]], object), "labels": GOOD[:2]}, "holds objects of Python"),
        (
            Array,
            {"inputs": np.ones((4, 3, 8, 8)), "labels": GOOD},
            "array.transpose(0, 2, 3, 1) turns into (N, H, W, C)",
        ),
        (Array, {"inputs": np.ones((4, 2)), "labels": GOOD, "owner": GOOD}, "it has an array owner, which is not used"),
        (Array, {"inputs": np.ones((4, 2)), "labels": GOOD, "split": GOOD}, "it has an array split, which is not used"),
        (Text, {"tokens": np.ones((4, 2), int), "labels": GOOD, "owner": GOOD}, "it has an array owner, which is not"),
        (Npz, {"images": np.ones((4, 8, 8, 3), np.uint8), "labels": GOOD, "owner": GOOD}, "it has an array owner"),
        (Npz, {"images": np.ones((4, 3, 8, 8), np.uint8), "labels": GOOD}, "array.transpose(0, 2, 3, 1) turns into"),
        (Text, {"labels": GOOD}, "cannot be used as tokens: it lacks tokens"),
        (Text, {"tokens": np.ones((4, 2)), "labels": GOOD}, "tokens has shape (4, 2) and type float64; expected whole"),
        (Text, {"tokens": np.array([[1, -1]] * 4), "labels": GOOD}, "the tokens go from -1 to 1"),
        (Text, {"tokens": np.zeros((4, 2), int), "labels": GOOD}, "of a vocabulary of 1; expected"),
        (Text, {"tokens": np.full((4, 2), 2**20), "labels": GOOD}, "of a vocabulary of 1048577; expected"),
    ],
)
def test_arrays_that_are_refused(tmp_path, kind, arrays, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        kind(saved(tmp_path, **arrays)).load()
