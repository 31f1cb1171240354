"""Columns of numbers are standardised, words become zeros and ones, and gaps are told of."""

import re

import numpy as np
import pandas as pd
import pytest

from protonorm.core.progress import listening
from protonorm.data.own import columns
from protonorm.data.own.columns import ColumnOptions, as_they_are, encode_columns, standardised


def encoded(data, **options):
    return encode_columns(pd.DataFrame(data), ColumnOptions(**options), "mine.csv")


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
        ({"age": [1e39, 0.0]}, {"standardise": False}, "'age' of mine.csv holds too large numbers"),
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
    assert not standardised(values).any()


def test_rows_are_taken_piece_by_piece(monkeypatch):
    values = np.random.default_rng(0).normal(5, 3, (10, 4))
    whole = standardised(values)
    monkeypatch.setattr(columns, "ROWS", 3)
    events = []
    with listening(lambda *event: events.append(event)):
        pieces = standardised(values)
    np.testing.assert_allclose(pieces, whole, rtol=1e-6)
    np.testing.assert_allclose(whole, (values - values.mean(0)) / values.std(0), rtol=1e-6)
    assert events == [("Standardising", done, 10) for done in (0, 3, 6, 9, 10)]


@pytest.mark.parametrize("change", [standardised, as_they_are])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_is_told_by_its_column(change, bad):
    with pytest.raises(ValueError, match="column 3 holds NaN, infinite"):
        change(np.array([[0, 0, 1.0], [1, 2, bad]]))


def test_memory_is_counted_before_it_is_taken(monkeypatch):
    monkeypatch.setattr("protonorm.data.access.LIMIT", 100)
    with pytest.raises(ValueError, match=r"mine.csv with 7 numbers a row would take .* fewer rows or columns"):
        encoded({f"c{i}": [1.0, 2.0] for i in range(9)})
