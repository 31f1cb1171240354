"""Name what can be chosen by name, and find it: a table line says where a class is, so that listing imports nothing."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One line of a table of contents."""

    target: str  # "package.module:Name"
    summary: str  # one line for people
    details: Mapping[str, str] = {}  # further columns of `protonorm list`

    def load(self) -> Any:
        """Import what the line points to."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


def nearest(name: str, known: Iterable[str], compared: Callable[[str], str] = str) -> str:
    """Say which known name was probably meant, and which there are; `compared` is the part of a name that is typed."""
    names = sorted(known)
    parts = {compared(one): one for one in names}
    close = difflib.get_close_matches(name.lower(), parts, n=1, cutoff=0.5)
    hint = f"did you mean {parts[close[0]]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}."


def find(table: Mapping[str, Entry], name: str, kind: str) -> Entry:
    """Look a name up, or refuse it with the nearest valid one."""
    if name not in table:
        raise ValueError(f"Unknown {kind} {name!r}; {nearest(name, table)}")
    return table[name]
