"""Texts to tokens by hashing: no vocabulary has to be learnt, kept or agreed on. Nothing here needs torch."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import steps

Unit = Literal["words", "characters"]

USUAL_LENGTH = {"words": 64, "characters": 256}
WORD = re.compile(r"\w+|[^\w\s]")  # a word, or a sign that is neither word nor space


class TokenOptions(NamedTuple):
    """How a text becomes tokens."""

    unit: Unit = "words"
    length: int | None = None  # tokens of a text at most; None takes 64 words or 256 characters, and whole token lists
    vocabulary: int = 4096  # V: tokens go from 1 to V − 1, and 0 fills up


def tokenise(texts: Sequence[str], options: TokenOptions) -> NDArray[np.int64]:
    """Make tokens (N, L) of texts: their first words or characters, small letters and capitals alike."""
    most = options.length or USUAL_LENGTH[options.unit]
    found = [hashes(text, options.unit, most, options.vocabulary) for text in steps(texts, "Reading texts")]
    result = np.zeros((len(texts), max(1, *map(len, found))), np.int64)
    for row, tokens in zip(result, found, strict=True):
        row[: len(tokens)] = tokens
    return result


def hashes(text: str, unit: Unit, most: int, vocabulary: int) -> list[int]:
    """Give a text's tokens; runs of space count as one character, and not at all between words."""
    plain = " ".join(text.casefold().split())
    pieces = WORD.findall(plain) if unit == "words" else list(plain)
    return [_token(piece, vocabulary) for piece in pieces[:most]]


@lru_cache(maxsize=2**16)
def _token(piece: str, vocabulary: int) -> int:
    return 1 + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % (vocabulary - 1)
