"""Plain data from outside: numbers, texts, lists and maps, of a size that settings can have, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from protonorm.core.types import shortened, shown

INTEGER, REAL, TIME = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
DEEPEST = 16  # lists and maps inside each other
LONGEST = 4096  # characters of a text: as many as a path may have
MOST = 100_000  # values in a file


class Unfit(yaml.MarkedYAMLError):
    """It is YAML, but no settings."""


class PlainLoader(yaml.SafeLoader):
    """Reads values as they stand: no anchors, aliases and tags, no deep nests, no endless texts, no name twice.

    Numbers are decimal: in YAML's first version 010 is eight, 1:30 is ninety, and 2024-01-01 a day.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag not in (INTEGER, REAL, TIME)]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a name that stands in a map twice: one of the values would count, and nobody says which."""
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise Unfit(problem=f"{shown(twice)} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def _integer(_: PlainLoader, node: yaml.ScalarNode) -> int:
    return int(node.value)


PlainLoader.add_implicit_resolver(INTEGER, re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*$"), list("-+0123456789"))
PlainLoader.add_implicit_resolver(
    REAL,
    re.compile(
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)
PlainLoader.add_constructor(INTEGER, _integer)


def load_plain(text: str) -> Any:
    """Read YAML; what is wrong with it, or not fit for settings, is a yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=PlainLoader)
    except ValueError as error:  # a number of thousands of digits
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
