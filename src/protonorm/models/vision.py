"""Import torchvision and timm wherever they are installed, also beside a torch without CUDA."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from torch.library import Library

# torchvision's compiled operators may be linked to CUDA. Where torch has none they do not load, and torchvision then
# stumbles over operators that it only wants to describe. Their signatures are enough for it; its networks use neither.
MISSING = "operator torchvision::nms does not exist"
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_defined: list[Library] = []  # a definition lasts as long as its object


def torchvision() -> ModuleType:
    """Import torchvision; where that fails for want of two operators, declare those and import it again."""
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if MISSING not in str(error) or _defined:
            raise
    library = Library("torchvision", "DEF")
    _defined.append(library)
    for name in ("nms", "qnms"):
        library.define(name + SIGNATURE)
    return import_module("torchvision")


def timm() -> ModuleType:
    """Import timm, and torchvision before it, which it imports itself."""
    if find_spec("timm") is None:
        raise ValueError("Networks named timm:… need timm, which is not installed: pip install 'protonorm[timm]'.")
    torchvision()
    return import_module("timm")
