"""From a setting to networks: a family, names, also those of torchvision and timm, or functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from protonorm.components import fingerprint, load_own
from protonorm.core import SplitModel
from protonorm.models import FAMILIES, MODELS
from protonorm.models.libraries import Name
from protonorm.models.split import split
from protonorm.registry import find, nearest

Network = Callable[[tuple[int, ...], int, int], nn.Module]  # (shape, d, K) -> model, cut or still to be cut
Choice = str | tuple[str | Network, ...]  # a family, or networks: client i takes number i mod n


def chosen(value: Any) -> Choice:
    """Check a setting: a family, a network, several with commas between, file.py:function, timm:NAME, or a list."""
    if isinstance(value, str) and value in FAMILIES:
        return value
    items = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if callable(items):
        items = [items]
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"models={value!r} is refused: expected a family, a network, or a list of networks.")
    return tuple(_known(item) for member in items for item in _members(member))


def _members(item: Any) -> tuple[Any, ...]:
    return FAMILIES[item].models if isinstance(item, str) and item in FAMILIES else (item,)


def _known(item: Any) -> str | Network:
    if isinstance(item, str) and ".py:" in item:
        item = load_own(item, "network")
    if isinstance(item, str):
        if library := Name.of(item):
            library.check()
        elif item not in MODELS:
            raise ValueError(f"Unknown network or family {item!r}; {nearest(item, {*FAMILIES, *MODELS})}")
        return item
    if not callable(item):
        raise ValueError(f"{item!r} is neither a network's name nor a function (shape, d, K) that makes one.")
    made: Network = item
    return made


def networks(choice: Choice) -> tuple[str | Network, ...]:
    """List the networks of a choice."""
    return FAMILIES[choice].models if isinstance(choice, str) else choice


def network(
    item: str | Network, shape: tuple[int, ...], feature_dim: int, num_classes: int, layer: str | None = None
) -> SplitModel:
    """Make a network for inputs of a shape, and cut it if it does not come cut."""
    if isinstance(item, str) and (library := Name.of(item)):
        return library._replace(layer=layer or library.layer).build(shape, feature_dim, num_classes)
    make = find(MODELS, item, "network").load() if isinstance(item, str) else item
    model = make(shape, feature_dim, num_classes)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{named(item)} gives a {type(model).__name__}; expected a pn.SplitModel or any nn.Module.")
    if not isinstance(model, SplitModel):
        return split(model, feature_dim, num_classes, shape=shape, layer=layer)
    if layer is not None:
        raise ValueError(f"The network {named(item)} comes cut into base and head; a layer cannot be named for it.")
    return model


def described(choice: Choice) -> Any:
    """Write a choice as plain data."""
    if isinstance(choice, str):
        return choice
    return [item if isinstance(item, str) else {"name": named(item), "source": fingerprint(item)} for item in choice]


def named(item: str | Network) -> str:
    """Name a network."""
    return item if isinstance(item, str) else f"{item.__module__}:{item.__qualname__}"
