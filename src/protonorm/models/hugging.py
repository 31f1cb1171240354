"""Vision networks of Hugging Face transformers as frozen trunks: hf:NAME, from a folder or from the hub's cache.

A folder is what `save_pretrained` writes: config.json, model.safetensors and perhaps preprocessor_config.json. Code of
a repository is never executed, and nothing is downloaded but by `protonorm backbones download`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from protonorm.core.own_failures import error_text
from protonorm.core.text import shortened
from protonorm.files import read_json
from protonorm.models import HUB
from protonorm.models.libraries import torchvision

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG, FILE, PREPROCESSOR = "config.json", "model.safetensors", "preprocessor_config.json"
INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # numbers of Pillow
HALF = (0.5, 0.5, 0.5)


class Positions(nn.Module):
    """Trunk whose features are the mean over all positions of a network's last hidden state."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, D), from tokens (B, T, D) or maps (B, D, H, W)."""
        last: Tensor = self.network(pixel_values=x).last_hidden_state
        return last.mean(1) if last.ndim == 3 else last.flatten(2).mean(2)


def transformers() -> Any:
    """Import transformers, after torchvision, which it would import without the workaround for its operators."""
    if find_spec("transformers") is None:
        raise ValueError(
            f"Networks named {HUB}… need transformers, which is not installed: pip install 'protonorm[hf]'"
        )
    torchvision()
    return import_module("transformers")


def find_folder(source: str, folder: str | None) -> Path:
    """Return the folder of a network, which was given or is in the hub's cache; raise ValueError if there is none."""
    name = source.removeprefix(HUB)
    if folder is not None:
        path: Path | None = Path(folder).expanduser()
    else:
        transformers()
        from huggingface_hub import try_to_load_from_cache

        try:
            found = try_to_load_from_cache(name, FILE)
        except ValueError as error:  # no name of a repository
            raise ValueError(f"{shortened(source)} is not a name of the hub, as hf:OWNER/NAME: {error}") from None
        path = Path(found).parent if isinstance(found, str) else None
    if path is None or not all((path / file).is_file() for file in (CONFIG, FILE)):
        where = f"{path} has no {CONFIG} and {FILE}" if folder is not None else f"The weights of {source} are not here"
        advice = f"frozen:{source}=FOLDER names a folder, protonorm backbones download {source} gets them"
        raise ValueError(f"{where}: {advice}.")
    return path


def hash_folder(folder: Path, hash_file: Any) -> str:
    """Return the SHA-256 of the checksums of a network's description and weights."""
    return hashlib.sha256(" ".join(hash_file(folder / name) for name in (CONFIG, FILE)).encode()).hexdigest()


def preparation(folder: Path) -> tuple[int | None, str, tuple[float, ...], tuple[float, ...]]:
    """Return size, interpolation, mean and standard deviation of a folder's network."""
    config, file = read_json(folder / CONFIG), folder / PREPROCESSOR
    config = config.get("vision_config") or config
    found: Mapping[str, Any] = read_json(file) if file.is_file() else {}
    sizes = [
        found.get("crop_size") if found.get("do_center_crop") else None,
        found.get("size"),
        config.get("image_size"),
    ]
    size = next((side for entry in sizes if (side := _side(entry))), None)
    mean, std = (tuple(found.get(name) or HALF) for name in ("image_mean", "image_std"))
    return size, INTERPOLATIONS.get(found.get("resample", 3), "bicubic"), mean, std


def _side(entry: Any) -> int | None:
    """Return the side of a picture from one of the forms that sizes have."""
    if isinstance(entry, Mapping):
        entry = entry.get("height") or entry.get("shortest_edge")
    if isinstance(entry, list) and entry:
        entry = entry[0]
    return entry if isinstance(entry, int) else None


def load(folder: Path) -> Positions:
    """Load a network; raise ValueError if weights are missing in its file."""
    library = transformers()
    try:
        with _quiet(library):
            config = library.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            options = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
            network, report = library.AutoModel.from_pretrained(
                folder,
                config=getattr(config, "vision_config", config),  # of networks for pictures and text
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # the library raises almost any type
        raise ValueError(f"{folder} cannot be used as a network: {error_text(error)}") from error
    missing = [name for name in report["missing_keys"] if not name.startswith("pooler.")]  # which is not used
    if missing or report["mismatched_keys"]:
        names = shortened(", ".join(map(str, [*missing, *report["mismatched_keys"]])), 200)
        raise ValueError(f"{folder / FILE} does not hold the weights of its network: {names}.")
    return Positions(network)


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Silence the library's report and its progress bars: what matters is checked here."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def download(source: str) -> Path:
    """Download a network into the hub's cache; return the file of its weights."""
    from huggingface_hub import hf_hub_download, snapshot_download

    name = source.removeprefix(HUB)
    snapshot_download(name, allow_patterns=[CONFIG, PREPROCESSOR])
    return Path(hf_hub_download(name, FILE))
