"""Choose benchmarks, run them, and keep what they find as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from protonorm.core.registry import nearest
from protonorm.files import pretty, read_json, replace

from . import BENCHMARKS
from .machine import facts

HERE = Path(__file__).resolve().parent
NUMBERS = re.compile(rb"\[\n[-+.\deE,\s]+\]")  # a list of numbers in JSON with indentation


def chosen(names: Sequence[str]) -> list[str]:
    """Check the names of benchmarks; none means all."""
    for name in names:
        if name not in BENCHMARKS:
            raise ValueError(f"Unknown benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    return list(names) or list(BENCHMARKS)


def run(name: str, notify: Callable[[str], None], command: str, folder: Path) -> tuple[ModuleType, dict[str, Any]]:
    """Measure one benchmark; give its module, and what it found with where it was found.

    One that takes `before` and `save` goes on from the result in the folder, and keeps it as it goes.
    """
    module, about = import_module(f".{name}", __package__), {"command": command, "machine": facts()}
    further: dict[str, Any] = {}
    if "before" in signature(module.measure).parameters:
        path = folder / f"{name}.json"
        further = {"before": read_json(path) if path.is_file() else None}
        further |= {"save": lambda found: keep(name, {**about, **found}, folder)}
    return module, {**about, **module.measure(notify=notify, **further)}


def place(folder: Path | None = None) -> Path:
    """Choose the folder of results: the one given, that of a checkout, or one where the user stands."""
    if folder is not None:
        return folder
    return HERE / "results" if (HERE.parent / "pyproject.toml").is_file() else Path("bench-results")


def keep(name: str, result: dict[str, Any], folder: Path) -> Path:
    """Write a result, with each list of numbers on one line."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    replace(path, NUMBERS.sub(lambda numbers: re.sub(rb"\n\s*", b"", numbers[0]).replace(b",", b", "), pretty(result)))
    return path


def silent(line: str) -> None:
    """Discard a line."""
