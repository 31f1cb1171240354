"""Labels, columns and texts become arrays."""

import re
import zlib

import numpy as np
import pandas as pd
import pytest

from protonorm.core.progress import listening
from protonorm.data.own import encoding
from protonorm.data.own.encoding import (
    Options,
    encode_columns,
    encode_labels,
    hashes,
    number_rows,
    padded,
    refuse_one_class,
    scale_columns,
    tokenise,
    vectors,
)
from protonorm.data.prepared import check_labels


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
        ([0, 2], ["a", "b"], "labels go from 0 to 2, but 2 classes"),
        ([-1, 1], ["a", "b"], "labels go from -1 to 1"),
        ([0, 0], [], "expected text"),
        ([0, 0], np.zeros(0, str), "labels go from 0 to 0, but 0 classes"),
        ([0, 1], ["a", "a"], "two classes have the same name"),
        ([0, 1], [1, 2], "expected text"),
        ([0.0, 1.0], ["a", "b"], "type float64; expected int64"),
    ],
)
def test_named_classes_that_do_not_fit(labels, classes, said):
    with pytest.raises(ValueError, match=said):
        check_labels(np.array(labels), np.array(classes), 2)


def test_an_experiment_needs_two_classes():
    with pytest.raises(ValueError, match=re.escape("It has one class only (cat); there is nothing to tell apart.")):
        refuse_one_class(["cat"], "It")
    refuse_one_class(["cat", "dog"], "It")


def test_named_classes_may_be_absent_from_the_labels():
    labels, names = check_labels(np.array([2, 0], np.uint8), np.array(["x", "y", "z"]), 2)
    assert (labels.tolist(), labels.dtype, names) == ([2, 0], np.int64, ("x", "y", "z"))


def encoded(data, **options):
    return encode_columns(pd.DataFrame(data), Options(**options), "mine.csv")


def test_numbers_by_hand():
    """1, 2, 3, 6 have mean 3 and mean square distance (4 + 1 + 0 + 9)/4 = 3.5."""
    found = encoded({"a": [1, 2, 3, 6], "b": [5, 5, 5, 5], "c": [True, False, True, False]})
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], np.array([-2, -1, 0, 3]) / np.sqrt(3.5), rtol=1e-6)
    assert found[:, 1].tolist() == [0, 0, 0, 0]
    assert found[:, 2].tolist() == [1, -1, 1, -1]


def test_words_become_a_column_each_in_their_order():
    found = encoded({"x": ["red", "blue", "red"], "n": [1.0, 2.0, 3.0]}, standardise=False)
    assert found.tolist() == [[0, 1, 1], [1, 0, 2], [0, 1, 3]]


def test_gaps_get_the_columns_mean():
    """Of numbers 1 and 3 it is 2, which is 0 when standardised; of red, red, blue it is (1/3, 2/3)."""
    data = {"n": [1.0, None, 3.0, 2.0], "x": ["red", "red", None, "blue"]}
    found = encoded(data, missing="mean", standardise=False)
    np.testing.assert_allclose(found[1], [2, 0, 1])
    np.testing.assert_allclose(found[2], [3, 1 / 3, 2 / 3])
    assert encoded(data, missing="mean")[1, 0] == 0


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        ({"age": [1.0, None, None]}, {}, "The column 'age' of mine.csv has no value in 2 of 3 rows, first in row 2"),
        ({"kind": ["a", None, "b"]}, {}, "The column 'kind' of mine.csv has no value in 1 of 3 rows"),
        ({"age": [1.0, np.inf]}, {"missing": "mean"}, "'age' of mine.csv holds infinite numbers"),
        ({"age": [1e308, -1e308, 1e308]}, {}, "'age' of mine.csv holds NaN, infinite or too large numbers"),
        (
            {"age": [0.0, 1e39]},
            {"standardise": False},
            "'age' of mine.csv holds NaN, infinite or too large numbers, such as in row 2",
        ),
        ({"age": [None, None]}, {"missing": "mean"}, "'age' of mine.csv is empty; leave it out with dataset.drop"),
        ({"id": [f"p{i}" for i in range(60)]}, {}, "'id' of mine.csv has 60 different words, and 50 at most"),
        ({"age": [*map(str, range(60)), "old"]}, {}, "(numbers but for 1, such as 'old' in row 61)"),
        ({"kind": ["a", "b", "c"]}, {"categories": 2}, "has 3 different words, and 2 at most"),
        ({}, {}, "no column but that of the labels"),
    ],
)
def test_columns_that_are_refused(data, options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        encoded(data, **options)


def test_a_constant_is_zero_although_its_mean_is_rounded():
    """The mean of 0.1, n times, is not 0.1 for every n; divided by its deviation the rounding would become ±1."""
    values = np.full((1000, 1), 0.1)
    assert not scale_columns(values, Options()).any()


def test_rows_are_taken_piece_by_piece(monkeypatch):
    values = np.random.default_rng(0).normal(5, 3, (10, 4))
    whole = scale_columns(values, Options())
    monkeypatch.setattr(encoding, "ROWS", 3)
    events = []
    with listening(lambda *event: events.append(event)):
        pieces = scale_columns(values, Options())
    np.testing.assert_allclose(pieces, whole, rtol=1e-6)
    np.testing.assert_allclose(whole, (values - values.mean(0)) / values.std(0), rtol=1e-6)
    assert events == [("Standardising", done, 10) for done in (0, 3, 6, 9, 10)]


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_is_told_by_its_column(standardise, bad):
    with pytest.raises(ValueError, match="column 3 holds NaN, infinite"):
        scale_columns(np.array([[0, 0, 1.0], [1, 2, bad]]), Options(standardise=standardise))


def test_memory_is_counted_before_it_is_taken(monkeypatch):
    monkeypatch.setattr("protonorm.data.access.LIMIT", 100)
    with pytest.raises(ValueError, match=r"mine.csv with 7 numbers a row would take .* fewer rows or columns"):
        encoded({f"c{i}": [1.0, 2.0] for i in range(9)})


def crc(piece, vocabulary):
    return 1 + zlib.crc32(piece.encode()) % (vocabulary - 1)


def test_words_and_signs():
    """CRC-32 of the word, folded into 1 … V − 1; capitals and space do not matter."""
    expected = [crc(piece, 100) for piece in ("don", "'", "t", "panic", "!")]
    assert hashes("Don't   PANIC!", "words", 10, 100) == expected
    assert hashes("Don't panic!", "words", 2, 100) == expected[:2]


def test_the_hash_is_the_known_one():
    """CRC-32 of "123456789" is 0xCBF43926 = 3421780262, as its definition's check value says."""
    assert hashes("123456789", "words", 5, 4096) == [1 + 3421780262 % 4095]


def test_characters():
    assert hashes("a  B", "characters", 10, 50) == [crc(sign, 50) for sign in "a b"]


def test_short_texts_are_filled_up_and_long_ones_cut():
    found = tokenise(["one two three", "one", "", "!"], Options(length=2))
    assert found.shape == (4, 2)
    assert found[0, 0] == found[1, 0] != 0
    assert found[1:3].tolist() == [[found[0, 0], 0], [0, 0]]
    assert tokenise(["a b", "a"], Options()).shape == (2, 2)  # no longer than the longest text
    assert tokenise([""], Options()).tolist() == [[0]]


@pytest.mark.parametrize(("unit", "length"), [("words", 64), ("characters", 256)])
def test_usual_lengths(unit, length):
    assert tokenise(["ab " * 300], Options(unit=unit)).shape == (1, length)


def test_tokens_stay_inside_the_vocabulary():
    words = [f"word{number}" for number in range(2000)]
    found = np.array([hashes(word, "words", 1, 7)[0] for word in words])
    assert set(found.tolist()) == {1, 2, 3, 4, 5, 6}
    assert hashes("\ud800 x", "words", 5, 2) == [1, 1]  # half a sign has a token too


def test_progress_is_told():
    events = []
    with listening(lambda *event: events.append(event)):
        tokenise(["a", "b"], Options())
    assert events == [("Reading texts", done, 2) for done in (0, 1, 2)]


def test_lists_of_tokens_and_of_numbers():
    rows = number_rows([[3, 1], [2], []], "It")
    assert padded(rows, Options(), "It").tolist() == [[3, 1], [2, 0], [0, 0]]
    assert padded(rows, Options(length=1), "It").tolist() == [[3], [2], [0]]
    plain = vectors(number_rows([[1.0, 2.0], [3.0, 2.0]], "It"), Options(), "It")
    assert plain.tolist() == [[-1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1.0], [1.0, 2.0]], "It is ragged: row 1 has 1 numbers, row 2 has 2"),
        ([[], []], "It is ragged: row 1 has 0 numbers"),
        ([[1.0], ["x"]], "It holds ['x'] in row 2; expected a list of numbers"),
        ([[1.0], None], "It holds None in row 2"),
        ([[[1.0, 2.0]]], "It holds [[1.0, 2.0]] in row 1"),
        ([[[1.0], [2.0, 3.0]]], "in row 1; expected a list of numbers"),
        ([[1.0], [float("nan")]], "It cannot be used: its column 1 holds NaN"),
    ],
)
def test_lists_that_are_refused(values, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        vectors(number_rows(values, "It"), Options(), "It")


def test_negative_tokens_are_refused():
    with pytest.raises(ValueError, match="It holds the token -1; expected numbers from 0"):
        padded(number_rows([[1], [-1]], "It"), Options(), "It")
