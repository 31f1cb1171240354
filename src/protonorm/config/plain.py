"""Plain data from outside: numbers, texts, lists and maps, of a size that settings can have, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from protonorm.core.types import shortened, shown

DEEPEST = 16  # lists and maps inside each other
LONGEST = 4096  # characters of a text: as many as a path may have
MOST = 100_000  # values in a file


class Unfit(yaml.MarkedYAMLError):
    """It is YAML, but no settings."""


class PlainLoader(yaml.SafeLoader):
    """Reads values as they stand: no anchors, aliases and tags, no deep nests, no endless texts."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Look at what comes next before anything is made of it."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._count += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _unfit("anchors and aliases (& and *) are not for settings", event)
        if event.tag is not None:
            raise _unfit("tags (!) are not for settings", event)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST:
            raise _unfit(f"a value has {len(event.value)} characters, and {LONGEST} at most are allowed", event)
        if self._depth > DEEPEST:
            raise _unfit(f"more than {DEEPEST} lists and maps are inside each other", event)
        if self._count > MOST:
            raise _unfit(f"there are more than {MOST} values", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def load_plain(text: str) -> Any:
    """Read YAML; what is wrong with it, or not fit for settings, is a yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=PlainLoader)
    except ValueError as error:  # a date that does not exist, a number of thousands of digits
        raise Unfit(problem=f"a value cannot be read ({shortened(str(error))})") from None
    except RecursionError:
        raise Unfit(problem="it is nested too deeply") from None


def check_plain(value: Any, name: str = "", depth: int = 0) -> None:
    """Refuse texts that no setting can be, and deep nests; objects of other kinds are for others to look at."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"{name}={shown(value)} is refused: it holds the character NUL, which no text needs.")
        if len(value) > LONGEST:
            raise ValueError(
                f"{name}={shown(value)} is refused: it has {len(value)} characters, and {LONGEST} at most are allowed."
            )
    if depth > DEEPEST:
        raise ValueError(f"{name} is refused: more than {DEEPEST} lists and maps are inside each other.")
    if isinstance(value, Mapping):
        for key, one in value.items():
            word = key if isinstance(key, str) else shown(key)
            check_plain(one, shortened(f"{name}.{word}" if name else word), depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            check_plain(one, name, depth + 1)


def _unfit(problem: str, event: Any) -> Unfit:
    return Unfit(problem=problem, problem_mark=event.start_mark)
