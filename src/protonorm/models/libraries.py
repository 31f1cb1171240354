"""Networks of torchvision and timm by name, with random weights: nothing is ever downloaded."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from protonorm.core import SplitModel
from protonorm.core.torchvision_import import importable_torchvision
from protonorm.core.types import shortened, shown
from protonorm.models.decision import first_line
from protonorm.models.pictures import set_channels
from protonorm.models.split import split

CLASSES = 1000  # outputs of the layer that will be cut off: a number that hidden layers do not have by chance


class LibraryNetwork(NamedTuple):
    """A network in a library: timm:convnext_atto, or with a layer to cut at, torchvision:squeezenet1_1@classifier.1."""

    library: str
    network: str
    layer: str | None

    @classmethod
    def of(cls, text: str) -> LibraryNetwork | None:
        """Read such a name; None if it is another kind of name."""
        library, colon, rest = text.partition(":")
        network, _, layer = rest.partition("@")
        return cls(library, network, layer or None) if colon and library in BUILDERS else None

    def check(self) -> None:
        """Refuse a name that the library does not know, and say which are near it."""
        known = BUILDERS[self.library].names()
        if self.network not in known:
            near = difflib.get_close_matches(shortened(self.network).lower(), known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {len(known)} others."
            raise ValueError(f"{self.library} has no network {shown(self.network)} for pictures; {hint}")

    def build(self, shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
        """Make the network for inputs of a shape, and cut it."""
        self.check()
        if len(shape) != 3:
            raise ValueError(
                f"The network {self.library}:{self.network} takes pictures (C, H, W), "
                f"but the data set has samples of shape {shape}."
            )
        try:
            network = BUILDERS[self.library].build(self.network, shape)
        except Exception as error:
            raise ValueError(
                f"{self.library}:{self.network} cannot be made for samples of shape {shape}: {first_line(error)}"
            ) from error
        return split(network, feature_dim, num_classes, shape=shape, layer=self.layer)


def torchvision() -> ModuleType:
    """Import torchvision, with or without its compiled operators."""
    with importable_torchvision():
        return import_module("torchvision")


def timm() -> ModuleType:
    """Import timm, and torchvision before it, which it imports itself."""
    if find_spec("timm") is None:
        raise ValueError("Networks named timm:… need timm, which is not installed: pip install 'protonorm[timm]'.")
    torchvision()
    return import_module("timm")


class Builder(NamedTuple):
    """What a library can make, and how."""

    names: Callable[[], list[str]]
    build: Callable[[str, tuple[int, ...]], nn.Module]


@cache
def _torchvision_names() -> list[str]:
    models: Any = torchvision().models
    return list(models.list_models(module=models))  # not those for detection, segmentation and films


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
        options = {"aux_logits": False, "init_weights": True}  # without the further outputs that they have in training
    network: nn.Module = torchvision().models.get_model(name, weights=None, num_classes=CLASSES, **options)
    set_channels(network, channels)
    return network


@cache
def _timm_names() -> list[str]:
    return list(timm().list_models())


def _timm_network(name: str, shape: tuple[int, ...]) -> nn.Module:
    channels, height, width = shape
    create: Callable[..., nn.Module] = partial(
        timm().create_model, name, pretrained=False, in_chans=channels, num_classes=CLASSES
    )
    # Transformers and the like must know the pictures' size, some as one number; convolutional networks refuse it.
    for size in ((height, width), height) if height == width else ((height, width),):
        with suppress(TypeError):
            return create(img_size=size)
    return create()


BUILDERS: dict[str, Builder] = {
    "torchvision": Builder(_torchvision_names, _torchvision_network),
    "timm": Builder(_timm_names, _timm_network),
}
