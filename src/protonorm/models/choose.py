"""From a setting to networks: a family, names, also those of torchvision and timm, or functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from protonorm.core.model import SplitModel
from protonorm.core.own_code import load_own, name_missing
from protonorm.core.own_failures import call_failure, told, wrong_arguments
from protonorm.core.own_text import fingerprint, own_name
from protonorm.core.registry import find, nearest
from protonorm.core.torchvision_import import importable_torchvision
from protonorm.core.types import shortened, shown
from protonorm.models import FAMILIES, MODELS
from protonorm.models.libraries import LibraryNetwork
from protonorm.models.lowering import laid_out
from protonorm.models.memory import lacks_memory
from protonorm.models.split import split
from protonorm.models.widths import SCALABLE, base_and_width, spelled_out

Network = Callable[[tuple[int, ...], int, int], nn.Module]  # (shape, d, K) -> model, cut or still to be cut
WIDTH = 512  # d of networks that are listed
ARGUMENTS = ("shape", "feature_dim", "num_classes")
Choice = str | tuple[str | Network, ...]  # a family, or networks: client i takes number i mod n


def chosen(value: Any, setting: str = "models") -> Choice:
    """Check a setting: a family, a network, several with commas between, file.py:function, timm:NAME, or a list.

    A network may be had at several widths: plain@1,0.5,0.25.
    """
    if isinstance(value, str) and value in FAMILIES:
        return value
    items = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    items = spelled_out(items) if isinstance(items, list | tuple) else items
    if callable(items):
        items = [items]
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"{setting}={shown(value)} is refused: expected a family, a network, or a list of networks.")
    return tuple(_known(item) for member in items for item in _members(member))


def _members(item: Any) -> tuple[Any, ...]:
    return FAMILIES[item].models if isinstance(item, str) and item in FAMILIES else (item,)


def _known(item: Any) -> str | Network:
    if isinstance(item, str) and ".py:" in item:
        item = load_own(item, "network")
    if isinstance(item, str):
        if library := LibraryNetwork.of(item):
            library.check()
        elif base_and_width(item)[0] not in MODELS:
            name_missing(item, "network")
            known = {*FAMILIES, *MODELS}
            raise ValueError(f"Unknown network or family {shown(item)}; {nearest(shortened(item), known)}")
        return item
    if not callable(item) or not hasattr(item, "__qualname__"):  # objects that can be called have no name to record
        raise ValueError(f"{shown(item)} is neither a network's name nor a function (shape, d, K) that makes one.")
    if said := wrong_arguments(item, ARGUMENTS):
        raise ValueError(f"{said} A network is made for the shape of a sample, d and the number of classes.")
    made: Network = item
    return made


def family_of(choice: Choice) -> Choice:
    """Name the family whose networks a choice lists, so that one choice is written in one way; others stay as given."""
    return next((name for name, family in FAMILIES.items() if family.models == choice), choice)


def usual_width(choice: Choice) -> int:
    """Give the width d that networks have unless an experiment says otherwise: their family's, or that of a list."""
    return FAMILIES[choice].feature_dim if isinstance(choice, str) else WIDTH


def networks(choice: Choice) -> tuple[str | Network, ...]:
    """List the networks of a choice."""
    return FAMILIES[choice].models if isinstance(choice, str) else choice


def network(
    item: str | Network, shape: tuple[int, ...], feature_dim: int, num_classes: int, layer: str | None = None
) -> SplitModel:
    """Make a network for inputs of a shape, and cut it if it does not come cut."""
    if isinstance(item, str) and (library := LibraryNetwork.of(item)):
        return library._replace(layer=layer or library.layer).build(shape, feature_dim, num_classes)
    if isinstance(item, str):
        base, width = base_and_width(item)
        make = find(MODELS, base, "network").load()
        model = make(shape, feature_dim, num_classes, *(() if width == 1 else (width,)))
    else:
        model = _make_own(item, shape, feature_dim, num_classes)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{named(item)} gives a {type(model).__name__}; expected a pn.SplitModel or any nn.Module.")
    if not isinstance(model, SplitModel):
        return split(model, feature_dim, num_classes, shape=shape, layer=layer)
    if layer is not None:
        raise ValueError(f"The network {named(item)} comes cut into base and head; a layer cannot be named for it.")
    if isinstance(item, str) and (kind := base_and_width(item))[0] in SCALABLE:
        base, model.width = kind
        model.at_width = lambda width: network(f"{base}@{width!r}", shape, feature_dim, num_classes)
    return model


def _make_own(make: Network, shape: tuple[int, ...], feature_dim: int, num_classes: int) -> nn.Module:
    """Call a user's function; what goes wrong there is said with its line."""
    try:
        with importable_torchvision():
            return make(shape, feature_dim, num_classes)
    except Exception as error:
        if lacks_memory(error):
            raise
        raise ValueError(
            f"The network {named(make)} cannot be made for samples of shape {shape}: {call_failure(error, make)}"
        ) from error


@dataclass(frozen=True)
class Recipe:
    """Everything needed to make one client's network; calling it gives a new one with random weights."""

    network: str | Network
    shape: tuple[int, ...]  # of one sample, as networks get it
    feature_dim: int  # d
    num_classes: int  # K
    lowered: bool = False  # whether layers take their CPU forms
    device: str = "cpu"

    @property
    def name(self) -> str:
        """Name the network."""
        return named(self.network)

    def __call__(self) -> SplitModel:
        """Make the network where it computes."""
        model = network(self.network, self.shape, self.feature_dim, self.num_classes)
        return laid_out(model, lowered=self.lowered).to(self.device)

    def describe(self) -> Any:
        """Describe the network in plain data."""
        return described(self.network)

    def check(self, model: SplitModel, batch: Tensor) -> None:
        """Refuse a network that does not turn two samples into features (2, d) and logits (2, K)."""
        wanted = [(2, self.feature_dim), (2, self.num_classes)]
        try:
            z = model.features(batch)
            logits = model.head(z)
        except Exception as error:
            if lacks_memory(error):
                raise
            said = told(error) if isinstance(self.network, str) else call_failure(error, self.network)
            raise ValueError(f"The network {self.name} does not take samples of shape {self.shape}: {said}") from error
        for part, given in (("features", z), ("logits", logits)):
            if not isinstance(given, Tensor):
                kind = type(given).__name__
                raise ValueError(f"The network {self.name} gives a {kind} as {part}; expected a tensor.")
        found = [tuple(z.shape), tuple(logits.shape)]
        if found != wanted:
            raise ValueError(
                f"The network {self.name} gives features {found[0]} and logits {found[1]} for two samples; "
                f"expected {wanted[0]} and {wanted[1]}."
            )


def described(item: str | Network) -> Any:
    """Write a network as plain data: its name, and for one of the user's own a fingerprint of its text."""
    return item if isinstance(item, str) else {"name": named(item), "source": fingerprint(item)}


def describe_choice(choice: Choice) -> Any:
    """Write a choice as plain data."""
    return choice if isinstance(choice, str) else [described(item) for item in choice]


def named(item: str | Network) -> str:
    """Name a network."""
    return item if isinstance(item, str) else own_name(item)
