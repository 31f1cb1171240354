"""A data set as public inputs: what all clients hold beside their own samples. Nothing here needs torch.

Methods find this file by its name alone, as a table's line does: they stand before the data sets, and import none.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from protonorm.core.registry import find
from protonorm.core.types import shown
from protonorm.data import DATASETS
from protonorm.data.dataset import Inputs


def public_digest(word: str) -> str:
    """Condense what a data set, NAME or KIND:PATH, holds to a SHA-256."""
    about = {"name": word, **_made(word).description()}
    about.pop("name")  # a path may be written in several ways
    return hashlib.sha256(json.dumps({"kind": word.partition(":")[0], **about}, sort_keys=True).encode()).hexdigest()


def public_inputs(word: str) -> Inputs:
    """Load or map the inputs (P, …) of a data set, training and test samples together, without their labels."""
    return _loaded(word, public_digest(word))


@lru_cache(maxsize=2)  # clients of a process look at the same array
def _loaded(word: str, digest: str) -> Inputs:
    del digest  # other content is another entry
    inputs: Inputs = _made(word).load().inputs
    return inputs


def _made(word: str) -> Any:
    """Make the data set that a word names, with its usual settings."""
    name, colon, path = word.partition(":")
    cls = find(DATASETS, name, "data set of public inputs").load()
    try:
        return TypeAdapter(cls).validate_python({"path": path} if colon else {})
    except ValidationError:
        known = f"{name}, without a path" if colon else f"{name}:PATH, where it is"
        raise ValueError(f"public={shown(word)} is refused: expected {known}.") from None
