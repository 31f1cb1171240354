"""Registry entries of components: an entry names the location of a class, so that listing does not import it."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

Found = TypeVar("Found")


class Entry(NamedTuple):
    """Entry of a component table."""

    target: str  # "package.module:Name"
    summary: str  # a single line, shown to users
    details: Mapping[str, str] = {}  # additional columns of `protonorm list`

    def load(self) -> Any:
        """Import the target of the entry."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


def nearest(name: str, known: Iterable[str], compared: Callable[[str], str] = str) -> str:
    """Return a hint with the closest known name and all names; `compared` maps a name to the part that is matched."""
    names = sorted(known)
    parts = {compared(candidate): candidate for candidate in names}
    completions = [part for part in parts if len(name) > 2 and part.startswith(name.lower())]  # batch: batch_size
    matches = completions if len(completions) == 1 else difflib.get_close_matches(name.lower(), parts, n=1, cutoff=0.5)
    hint = f"did you mean {parts[matches[0]]!r}? Known" if matches else "known"
    return f"{hint}: {', '.join(names)}."


def find(table: Mapping[str, Found], name: str, kind: str) -> Found:
    """Return the entry of a name; raise ValueError with the closest known name if there is none."""
    if name not in table:
        raise ValueError(f"Unknown {kind} {name!r}; {nearest(name, table)}")
    return table[name]
