"""Let torchvision be imported where its compiled operators do not fit torch: by us, and by users' files.

The operators may be linked to CUDA. Where torch has none they do not load, and torchvision then stumbles over operators
that it only wants to describe. Their signatures are enough for it; no network uses them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MISSING = "operator torchvision::nms does not exist"
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_defined: list[Any] = []  # a definition lasts as long as its object


@contextmanager
def importable_torchvision() -> Iterator[None]:
    """Import torchvision without its operators, if need be, whoever asks for it while this lasts."""
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class Finder(MetaPathFinder):
    """Finds torchvision where it is, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Give torchvision a loader that tries twice."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torchvision" else None
        if spec is not None and spec.loader is not None:
            spec.loader = Twice(spec.loader)
        return spec


class Twice(Loader):
    """Imports a module, and once more after what it lacked was declared."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as get_source, for tracebacks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as usual."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute it; again if operators were missing."""
        try:
            self._loader.exec_module(module)
        except RuntimeError as error:
            if MISSING not in str(error) or _defined:
                raise
            _declare()
            self._loader.exec_module(module)


def _declare() -> None:
    from torch.library import Library

    library = Library("torchvision", "DEF")
    _defined.append(library)
    for name in ("nms", "qnms"):
        library.define(name + SIGNATURE)
