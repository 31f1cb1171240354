"""Texts become tokens by hashing."""

import re
import zlib

import numpy as np
import pytest

from protonorm.core.progress import listening
from protonorm.data.own.columns import ColumnOptions
from protonorm.data.own.sequences import number_rows, padded, vectors
from protonorm.data.own.tokens import TokenOptions, hashes, tokenise


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
    found = tokenise(["one two three", "one", "", "!"], TokenOptions(length=2))
    assert found.shape == (4, 2)
    assert found[0, 0] == found[1, 0] != 0
    assert found[1:3].tolist() == [[found[0, 0], 0], [0, 0]]
    assert tokenise(["a b", "a"], TokenOptions()).shape == (2, 2)  # no longer than the longest text
    assert tokenise([""], TokenOptions()).tolist() == [[0]]


@pytest.mark.parametrize(("unit", "length"), [("words", 64), ("characters", 256)])
def test_usual_lengths(unit, length):
    assert tokenise(["ab " * 300], TokenOptions(unit)).shape == (1, length)


def test_tokens_stay_inside_the_vocabulary():
    words = [f"word{number}" for number in range(2000)]
    found = np.array([hashes(word, "words", 1, 7)[0] for word in words])
    assert set(found.tolist()) == {1, 2, 3, 4, 5, 6}
    assert hashes("\ud800 x", "words", 5, 2) == [1, 1]  # half a sign has a token too


def test_progress_is_told():
    events = []
    with listening(lambda *event: events.append(event)):
        tokenise(["a", "b"], TokenOptions())
    assert events == [("Reading texts", done, 2) for done in (0, 1, 2)]


def test_lists_of_tokens_and_of_numbers():
    rows = number_rows([[3, 1], [2], []], "It")
    assert padded(rows, TokenOptions(), "It").tolist() == [[3, 1], [2, 0], [0, 0]]
    assert padded(rows, TokenOptions(length=1), "It").tolist() == [[3], [2], [0]]
    plain = vectors(number_rows([[1.0, 2.0], [3.0, 2.0]], "It"), ColumnOptions(), "It")
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
        vectors(number_rows(values, "It"), ColumnOptions(), "It")


def test_negative_tokens_are_refused():
    with pytest.raises(ValueError, match="It holds the token -1; expected numbers from 0"):
        padded(number_rows([[1], [-1]], "It"), TokenOptions(), "It")
