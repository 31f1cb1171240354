"""Tables of networks and network families, and names of networks at reduced width.

The tables do not import the networks. Does not need torch.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from protonorm.core.registry import Entry
from protonorm.core.types import shown

SCALABLE = ("plain", "residual", "cnn4", "mlp")  # networks that are available at reduced width


class Family(NamedTuple):
    """Family of networks: client i uses network i mod n."""

    models: tuple[str, ...]
    feature_dim: int  # default d
    summary: str

    @property
    def details(self) -> dict[str, str]:
        """Additional columns of `protonorm list`."""
        return {"networks": ", ".join(self.models), "d": str(self.feature_dim)}


PICTURES = "pictures from 16×16"

# Module of the function of the same name, summary, number of parameters, and input.
_MODELS = {
    "plain": ("light", "convolutions one after the other", "118 k", PICTURES),
    "residual": ("light", "convolutions with shortcuts that are added", "176 k", PICTURES),
    "depthwise": ("light", "each channel by itself, then all channels of a point", "64 k", PICTURES),
    "dense": ("light", "each layer reads what all before it found", "144 k", PICTURES),
    "resnet8": ("paper_networks", "ResNet-8 of the paper", "1238 k", PICTURES),
    "mobilenet_v2": ("paper_networks", "MobileNetV2 of the paper, from torchvision", "2229 k", PICTURES),
    "shufflenet_v2": ("paper_networks", "ShuffleNetV2 ×1.0 of the paper, from torchvision", "1259 k", PICTURES),
    "efficientnet_b0": ("paper_networks", "EfficientNet-B0 of the paper, from torchvision", "4013 k", PICTURES),
    "resnet18": ("paper_networks", "ResNet-18 of the paper's homogeneous table, from torchvision", "11182 k", PICTURES),
    "cnn4": ("paper_networks", "4-layer CNN of the paper's homogeneous table", "879 k", PICTURES),
    "mlp": ("light", "five fully connected layers, of 16, 8, 4, d and K units", "0.2 k", "vectors"),
    "mlp_small": ("light", "two hidden layers of 64 units", "13 k", "vectors"),
    "mlp_wide": ("light", "one hidden layer of 512 units", "68 k", "vectors"),
    "text_mean": ("light", "the mean of what stands for the tokens, and one hidden layer", "271 k", "tokens"),
    "text_cnn": ("light", "convolutions over three and five tokens, and the largest of each", "294 k", "tokens"),
}

MODELS: dict[str, Entry] = {
    name: Entry(f"protonorm.models.{module}:{name}", summary, {"input": input, "parameters": parameters})
    for name, (module, summary, parameters, input) in _MODELS.items()
}

FAMILIES: dict[str, Family] = {
    "light": Family(("plain", "residual", "depthwise", "dense"), 128, "four kinds of small networks, quick on a CPU"),
    "paper": Family(
        ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0"),
        512,
        "the four networks of the paper's tables 1, 2",
    ),
    "cnn": Family(("cnn4",), 512, "the 4-layer CNN of the paper's table 3"),
    "resnet18": Family(("resnet18",), 512, "the ResNet-18 of the paper's table 3"),
    "mlp": Family(("mlp",), 2, "one small network for points in the plane"),
    "tabular": Family(("mlp_small", "mlp_wide"), 64, "a small and a wide network for vectors, such as rows of tables"),
    "text": Family(("text_mean", "text_cnn"), 64, "two small networks for tokens"),
}


FROZEN = "frozen:"  # before the name of a network with a frozen trunk
HUB = "hf:"  # prefix of networks of transformers, on the Hugging Face Hub or in a folder


def is_frozen(item: Any) -> bool:
    """Return whether an item of the setting `models` names a network with a frozen trunk."""
    return isinstance(item, str) and item.startswith(FROZEN)


def scaled(channels: int, width: float) -> int:
    """Return the channels of a layer at width r: ⌈rC⌉, at least 1."""
    return max(1, math.ceil(channels * width - 1e-9))


def base_and_width(name: str) -> tuple[str, float]:
    """Parse plain@0.5 as plain and 0.5; the default width is 1."""
    base, at, text = name.partition("@")
    if not at or ":" in base:  # timm:NAME@LAYER names a layer
        return name, 1.0
    try:
        width = float(text)
    except ValueError:
        width = math.nan
    if not 0 < width <= 1:
        raise ValueError(f"A width must be above 0 and at most 1, as in {base}@0.5, got {shown(name)}.")
    if base not in SCALABLE:
        raise ValueError(f"A width must be of {', '.join(SCALABLE)}, got {shown(name)}: {base} has one width.")
    return base, width


def spelled_out(items: Iterable[Any]) -> list[Any]:
    """Expand plain@1, 0.5, 0.25 to plain, plain@0.5, plain@0.25: a number applies to the preceding network."""
    names: list[Any] = []
    base = ""
    for item in items:
        name = f"{base}@{item}" if base and _is_number(item) else item
        base = ""
        if isinstance(name, str) and "@" in name and ":" not in name:
            base, width = base_and_width(name)
            name = base if width == 1 else f"{base}@{width!r}"
        names.append(name)
    return names


def widest(names: Sequence[Any]) -> Any:
    """Return the widest of several widths of the same network; the first among equals."""
    return max(names, key=lambda name: base_and_width(name)[1] if isinstance(name, str) else 1.0)


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float | str) and str(item).replace(".", "", 1).isdigit()
