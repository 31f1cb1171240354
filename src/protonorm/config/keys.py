"""The key of an experiment: the name of its run and of the run's folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

FORMAT = 3  # of a run's files; another one gives another key
UNDECISIVE = ("retries",)  # settings that decide no number, and so are not in the key
LONGEST = 60  # bytes of a word in a key


def key_of(decisive: Mapping[str, Any], seed: int) -> str:
    """Join readable words and a hash of all settings that decide numbers."""
    plain = {"format": FORMAT, **decisive}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:10]
    words = [plain["algorithm"]["name"], plain["dataset"]["name"], f"seed{seed}", digest]
    return "-".join(_word(word) for word in words)


def _word(text: str) -> str:
    """Make it fit for a folder's name: of file.py:Name the name, in small letters, not too long."""
    word = re.sub(r"[^\w.-]+", "-", text.split(":")[-1].lower())
    return word.encode()[:LONGEST].decode(errors="ignore")
