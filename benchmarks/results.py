"""Choose benchmarks, run them, and keep what they find as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from protonorm.core.registry import nearest
from protonorm.files import pretty, replace

from . import BENCHMARKS
from .machine import facts

HERE = Path(__file__).resolve().parent


def chosen(names: Sequence[str]) -> list[str]:
    """Check the names of benchmarks; none means all."""
    for name in names:
        if name not in BENCHMARKS:
            raise ValueError(f"Unknown benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    return list(names) or list(BENCHMARKS)


def run(name: str, notify: Callable[[str], None], command: str) -> tuple[ModuleType, dict[str, Any]]:
    """Measure one benchmark; give its module, and what it found with where it was found."""
    module = import_module(f".{name}", __package__)
    return module, {"command": command, "machine": facts(), **module.measure(notify=notify)}


def place(folder: Path | None = None) -> Path:
    """Choose the folder of results: the one given, that of a checkout, or one where the user stands."""
    if folder is not None:
        return folder
    return HERE / "results" if (HERE.parent / "pyproject.toml").is_file() else Path("bench-results")


def keep(name: str, result: dict[str, Any], folder: Path) -> Path:
    """Write a result."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    replace(path, pretty(result))
    return path


def silent(line: str) -> None:
    """Discard the result."""
