"""Names for the file of a table of your own: `from protonorm.reproduction.cells import Cell, Column, printed`."""

from importlib import import_module
from typing import Any

from protonorm.config.kinds import bundled


def __getattr__(name: str) -> Any:
    """Return a name of `experiments.reproduction.cells`, which is inside the package in a wheel only."""
    module = import_module(f"{bundled('experiments').__name__}.reproduction.cells")
    if name.startswith("__") or not hasattr(module, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
