"""The words of a sweep: methods, and one or several values for each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protonorm.algorithms import ALGORITHMS
from protonorm.config.methods import is_method
from protonorm.config.parsing import NESTED, parse_value, read_yaml
from protonorm.core.types import shown

METHODS = ("methods", "algorithm")  # settings of a YAML file that name methods

Entries = dict[str, list[Any]]  # values of each setting, as they were given


def read_entries(words: Sequence[str]) -> tuple[list[str], Entries]:
    """Read methods and values: key=a,b,c has three, key=[a,b] has one; in a YAML file a list has several."""
    entries = Entries()
    for word in words:
        name, equals, text = word.partition("=")
        if is_method(word):
            entries.setdefault("methods", []).append(word)
        else:
            given = {name.strip(): [parse_value(name, one) for one in split_values(text)]} if equals else {}
            for key, values in (given or _flat(read_yaml(Path(word)))).items():
                entries.pop(key, None)  # the later one wins, and takes its place
                entries[key] = values
    for name, values in entries.items():
        if not values:
            raise ValueError(f"{shown(name)} has an empty list; expected at least one value.")
    methods = [str(one) for name in METHODS for one in entries.pop(name, [])]
    if not methods:
        raise ValueError(f"There is no method to run; known: {', '.join(sorted(ALGORITHMS))}.")
    return list(dict.fromkeys(methods)), entries


def split_values(text: str, sign: str = ",") -> list[str]:
    """Cut a text at its commas, or at another sign, but not inside brackets or quotes that begin a value."""
    parts, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(text):
        begins = not text[start:place].strip()
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and begins:
            quote = letter
        elif letter in "[{" and (begins or depth):
            depth += 1
        elif letter in "]}" and depth:
            depth -= 1
        elif letter == sign and not depth:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def _flat(found: Mapping[str, Any]) -> Entries:
    """Read a YAML file's settings: a list has several values, a list in it is one; a map has settings of a setting."""
    entries = Entries()
    for name, value in found.items():
        inner: Mapping[Any, Any] = {name: value}
        if name in NESTED and isinstance(value, Mapping):
            inner = {name if field == "name" else f"{name}.{field}": one for field, one in value.items()}
        entries |= {str(key): one if isinstance(one, list) else [one] for key, one in inner.items()}
    return entries
