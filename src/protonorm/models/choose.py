"""From a setting to networks: a family, names, or functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protonorm.components import fingerprint, load_own
from protonorm.core import SplitModel
from protonorm.models import FAMILIES, MODELS
from protonorm.registry import find, nearest

Network = Callable[[tuple[int, ...], int, int], SplitModel]  # (shape, d, K) -> model
Choice = str | tuple[str | Network, ...]  # a family, or networks: client i takes number i mod n


def chosen(value: Any) -> Choice:
    """Check a setting: a family, a network, several with commas between, file.py:function, or a list."""
    if isinstance(value, str) and value in FAMILIES:
        return value
    items = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if callable(items):
        items = [items]
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"models={value!r} is refused: expected a family, a network, or a list of networks.")
    return tuple(_known(item) for item in items)


def _known(item: Any) -> str | Network:
    if isinstance(item, str) and ".py:" in item:
        item = load_own(item, "network")
    if isinstance(item, str):
        if item not in MODELS:
            raise ValueError(f"Unknown network or family {item!r}; {nearest(item, [*FAMILIES, *MODELS])}")
        return item
    if not callable(item):
        raise ValueError(f"{item!r} is neither a network's name nor a function (shape, d, K) that makes one.")
    made: Network = item
    return made


def networks(choice: Choice) -> tuple[str | Network, ...]:
    """List the networks of a choice."""
    return FAMILIES[choice].models if isinstance(choice, str) else choice


def network(item: str | Network, shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Make a network for inputs of a shape, and check that it is cut where it should be."""
    make = find(MODELS, item, "network").load() if isinstance(item, str) else item
    model = make(shape, feature_dim, num_classes)
    if not isinstance(model, SplitModel):
        raise ValueError(f"{named(item)} gives a {type(model).__name__}; expected a pn.SplitModel.")
    return model


def described(choice: Choice) -> Any:
    """Write a choice as plain data."""
    if isinstance(choice, str):
        return choice
    return [item if isinstance(item, str) else {"name": named(item), "source": fingerprint(item)} for item in choice]


def named(item: str | Network) -> str:
    """Name a network."""
    return item if isinstance(item, str) else f"{item.__module__}:{item.__qualname__}"
