"""Resolution of the setting `models` to networks: families, names, torchvision and timm, or user functions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from protonorm.core.model import SplitModel, Trunk
from protonorm.core.own_code import fingerprint, importable_torchvision, load_own, name_missing, own_name
from protonorm.core.own_failures import call_failure, error_text, wrong_arguments
from protonorm.core.registry import find, nearest
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.errors import lacks_memory
from protonorm.models import FAMILIES, MODELS, SCALABLE, base_and_width, is_frozen, spelled_out
from protonorm.models.lowering import to_channels_last

if TYPE_CHECKING:
    from protonorm.models.frozen import FrozenNetwork
    from protonorm.models.libraries import LibraryNetwork

Network = Callable[[tuple[int, ...], int, int], nn.Module]  # (shape, d, K) -> model, a SplitModel or a module to split
Shape = tuple[int, ...]  # of a sample, as network input
Layer = str | None  # name of the layer to split at; None: detected
WIDTH = 512  # default d of a list of networks
ARGUMENTS = ("shape", "feature_dim", "num_classes")
Choice = str | tuple[str | Network, ...]  # a family, or networks: client i uses network i mod n


def chosen(value: Any, setting: str = "models") -> Choice:
    """Validate a setting: a family, networks with commas, at widths (plain@1,0.5), file.py:function, timm:NAME."""
    if isinstance(value, str) and value in FAMILIES:
        return value
    items = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    items = [items] if callable(items) else items
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"{setting} must be a family, a network, or a list of networks, got {shown(value)}.")
    members = (networks(item) if isinstance(item, str) and item in FAMILIES else (item,) for item in spelled_out(items))
    return tuple(_known(item) for member in members for item in member)


def _library(name: str) -> "LibraryNetwork | None":
    """Parse a library network such as timm:NAME; None for other names."""
    if ":" not in name:
        return None
    from protonorm.models.libraries import LibraryNetwork

    return LibraryNetwork.of(name)


def _frozen(item: Any) -> "FrozenNetwork | None":
    """Parse a network with a frozen trunk; None for other networks."""
    if not is_frozen(item):
        return None
    from protonorm.models.frozen import FrozenNetwork

    return FrozenNetwork.of(item)


def _known(item: Any) -> str | Network:
    if frozen := _frozen(item):
        frozen.check()
        return str(item)
    if isinstance(item, str) and ".py:" in item:
        item = load_own(item, "network")
    if isinstance(item, str):
        if library := _library(item):
            library.check()
        elif base_and_width(item)[0] not in MODELS:
            name_missing(item, "network")
            names = {*FAMILIES, *MODELS}
            raise ValueError(f"Unknown network or family {shown(item)}; {nearest(shortened(item), names)}")
        return item
    if not callable(item) or not hasattr(item, "__qualname__"):  # callable objects have no name to record
        raise ValueError(f"{shown(item)} is neither a network's name nor a function (shape, d, K) that makes one.")
    if wrong := wrong_arguments(item, ARGUMENTS):
        raise ValueError(f"{wrong} A network is made for the shape of a sample, d and the number of classes.")
    return cast(Network, item)


def family_of(choice: Choice) -> Choice:
    """Return the family with the networks of a choice, so that equal choices have one form; else the choice itself."""
    return next((name for name, family in FAMILIES.items() if family.models == choice), choice)


def default_width(choice: Choice) -> int:
    """Return the default d of a choice: that of the family, or of a list of networks."""
    return FAMILIES[choice].feature_dim if isinstance(choice, str) else WIDTH


def networks(choice: Choice) -> tuple[str | Network, ...]:
    """List the networks of a choice."""
    return FAMILIES[choice].models if isinstance(choice, str) else choice


def network(item: str | Network, shape: Shape, feature_dim: int, num_classes: int, layer: Layer = None) -> SplitModel:
    """Build a network for inputs of a shape, and split it unless it is a SplitModel."""
    if _frozen(item):
        raise ValueError(f"The network {named(item)} has a frozen trunk, which is not a part of what is trained.")
    if isinstance(item, str) and (library := _library(item)):
        return library._replace(layer=layer or library.layer).build(shape, feature_dim, num_classes)
    if isinstance(item, str):
        base, width = base_and_width(item)
        make = find(MODELS, base, "network").load()
        model = make(shape, feature_dim, num_classes, *(() if width == 1 else (width,)))
    else:
        base, width = "", 1.0
        model = _make_own(item, shape, feature_dim, num_classes)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{named(item)} gives a {type(model).__name__}; expected a pn.SplitModel or any nn.Module.")
    if not isinstance(model, SplitModel):
        from protonorm.models.split import split  # rarely needed

        return split(model, feature_dim, num_classes, shape=shape, layer=layer)
    if layer is not None:
        raise ValueError(f"The network {named(item)} comes cut into base and head; a layer cannot be named for it.")
    if base in SCALABLE:
        model.width = width
        model.at_width = lambda width: network(f"{base}@{width!r}", shape, feature_dim, num_classes)
    return model


def _make_own(make: Network, shape: tuple[int, ...], feature_dim: int, num_classes: int) -> nn.Module:
    """Build a network with a user's function; raise ValueError with the failing line."""
    try:
        with importable_torchvision():
            return make(shape, feature_dim, num_classes)
    except Exception as error:
        if lacks_memory(error):
            raise
        problem = call_failure(error, make)
        raise ValueError(f"The network {named(make)} cannot be made for samples of shape {shape}: {problem}") from error


@contextmanager
def explained(item: str | Network, shape: tuple[int, ...]) -> Iterator[None]:
    """Convert errors of a network on samples of a shape to ValueErrors; out-of-memory errors are unchanged."""
    try:
        yield
    except Exception as error:
        if lacks_memory(error):
            raise
        reason = error_text(error) if isinstance(item, str) else call_failure(error, item)
        raise ValueError(f"The network {named(item)} does not take samples of shape {shape}: {reason}") from error


@dataclass(frozen=True)
class Recipe:
    """Factory of a client's network; calling it returns a new network with random weights."""

    network: str | Network
    shape: tuple[int, ...]  # of a sample, as network input
    feature_dim: int  # d
    num_classes: int  # K
    lowered: bool = False  # whether to use layers optimised for the CPU
    device: str = "cpu"
    trunk: Trunk | None = None  # of a network with a frozen trunk, whose input are features
    start: int = 0  # first column of the trunk's features in the input

    @property
    def name(self) -> str:
        """Name of the network."""
        return named(self.network)

    def __call__(self) -> SplitModel:
        """Build the network on its device."""
        if self.trunk is not None and (frozen := _frozen(self.network)):
            from protonorm.models.frozen import make_head

            return make_head(self.trunk, frozen.head, self.start, self.feature_dim, self.num_classes).to(self.device)
        model = network(self.network, self.shape, self.feature_dim, self.num_classes)
        return to_channels_last(model, lowered=self.lowered).to(self.device)

    def describe(self) -> Any:
        """Return a JSON-compatible description of the network."""
        return described(self.network) if self.trunk is None else {"name": self.name, "source": self.trunk.digest}

    def check(self, model: SplitModel, batch: Tensor) -> None:
        """Raise ValueError if the network does not map two samples to features (2, d) and logits (2, K)."""
        expected = (2, self.feature_dim), (2, self.num_classes)
        with explained(self.network, self.shape):
            z = model.features(batch)
            logits = model.head(z)
        for part, output in (("features", z), ("logits", logits)):
            if not isinstance(output, Tensor):
                kind = type(output).__name__
                raise ValueError(f"The network {self.name} gives a {kind} as {part}; expected a tensor.")
        if (z.shape, logits.shape) != expected:
            raise ValueError(
                f"The network {self.name} gives features {tuple(z.shape)} and logits {tuple(logits.shape)} for two "
                f"samples; expected {expected[0]} and {expected[1]}."
            )


def described(item: str | Network) -> Any:
    """Return a network as plain data: its name, and a fingerprint of a user's function or file of weights."""
    if frozen := _frozen(item):
        return frozen.describe()
    return item if isinstance(item, str) else {"name": named(item), "source": fingerprint(item)}


def describe_choice(choice: Choice) -> Any:
    """Return a choice as plain data."""
    return choice if isinstance(choice, str) else [described(item) for item in choice]


def named(item: str | Network) -> str:
    """Return the name of a network."""
    if frozen := _frozen(item):
        return frozen.name
    return item if isinstance(item, str) else own_name(item)
