"""Networks of torchvision and timm by name, with random weights; nothing is downloaded."""

import difflib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple, cast

from torch import nn

from protonorm.core import SplitModel
from protonorm.core.own_code import importable_torchvision
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.models.inputs import set_channels
from protonorm.models.split import first_line, split

CLASSES = 1000  # outputs of the layer to be replaced: a size that hidden layers do not have by chance


class LibraryNetwork(NamedTuple):
    """Network of a library: timm:convnext_atto, or with a layer to split at: torchvision:squeezenet1_1@classifier.1."""

    library: str
    network: str
    layer: str | None

    @classmethod
    def of(cls, text: str) -> "LibraryNetwork | None":
        """Parse such a name; None for other names."""
        library, colon, item = text.partition(":")
        network, _, layer = item.partition("@")
        return cls(library, network, layer or None) if colon and library in BUILDERS else None

    def check(self) -> None:
        """Raise ValueError with similar names if the library does not have the network."""
        names = NAMES[self.library]()
        if self.network not in names:
            matches = difflib.get_close_matches(shortened(self.network).lower(), names, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, matches))}?" if matches else f"it has {len(names)} others."
            raise ValueError(f"{self.library} has no network {shown(self.network)} for pictures; {hint}")

    def build(self, shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
        """Build the network for inputs of a shape, and split it."""
        self.check()
        if len(shape) != 3:
            raise ValueError(f"{self.library}:{self.network} takes pictures (C, H, W), got samples of shape {shape}.")
        try:
            network = BUILDERS[self.library](self.network, shape)
        except Exception as error:
            name, problem = f"{self.library}:{self.network}", first_line(error)
            raise ValueError(f"{name} cannot be made for samples of shape {shape}: {problem}") from error
        return split(network, feature_dim, num_classes, shape=shape, layer=self.layer)


def torchvision() -> ModuleType:
    """Import torchvision, with or without its compiled operators."""
    with importable_torchvision():
        return import_module("torchvision")


def timm() -> ModuleType:
    """Import timm, after torchvision, which timm would import without the workaround for its operators."""
    if find_spec("timm") is None:
        raise ValueError(
            "Networks named timm:… need timm, which is not installed: pip install '.[timm]' in a checkout."
        )
    torchvision()
    return import_module("timm")


@cache
def _torchvision_names() -> list[str]:
    models: Any = torchvision().models
    return list(models.list_models(module=models))  # without those for detection, segmentation and video


def _torchvision_network(name: str, shape: tuple[int, ...]) -> nn.Module:
    channels, height, width = shape
    options: dict[str, Any] = {}
    if name.startswith("vit_"):
        if height != width:
            raise ValueError("it takes square pictures.")
        options = {"image_size": height}
    elif name.startswith("maxvit_"):
        options = {"input_size": (height, width)}
    elif name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}  # without the auxiliary outputs of training
    network: nn.Module = torchvision().models.get_model(name, weights=None, num_classes=CLASSES, **options)
    set_channels(network, channels)
    return network


@cache
def _timm_names() -> list[str]:
    return list(timm().list_models())


def _timm_network(name: str, shape: tuple[int, ...]) -> nn.Module:
    channels, height, width = shape
    create = partial(timm().create_model, name, pretrained=False, in_chans=channels, num_classes=CLASSES)
    # Transformers and similar networks need the image size, some as a single number; convolutional networks reject it.
    for size in ((height, width), height) if height == width else ((height, width),):
        with suppress(TypeError):
            return cast(nn.Module, create(img_size=size))
    return cast(nn.Module, create())


NAMES: dict[str, Callable[[], list[str]]] = {"torchvision": _torchvision_names, "timm": _timm_names}
BUILDERS: dict[str, Callable[..., nn.Module]] = {"torchvision": _torchvision_network, "timm": _timm_network}
