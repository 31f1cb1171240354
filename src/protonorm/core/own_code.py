"""The user's own classes and functions: imported from their files, told apart by their text, found again elsewhere."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from protonorm.core.registry import nearest

PREFIX = "protonorm_own_"  # of the names of modules that are users' files: no library has it


def load_own(place: str, kind: str) -> Any:
    """Import a class or function from a user's own file: path/to/file.py:Name."""
    path, _, name = place.rpartition(":")
    module = load_file(Path(path))
    if not hasattr(module, name):
        found = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise ValueError(f"{path} has no {kind} {name!r}; {nearest(name, found)}")
    return getattr(module, name)


def load_file(path: Path) -> ModuleType:
    """Import a user's own file, once."""
    name = f"{PREFIX}{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path.resolve()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"There is no Python file {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # it is not whole
        raise
    return module


def fingerprint(thing: Any) -> str:
    """Tell one text of a user's own class or function from another: by its file, or by itself in a main script."""
    try:
        if thing.__module__ == "__main__":
            text = inspect.getsource(thing).encode()
        else:
            text = Path(inspect.getfile(thing)).read_bytes()
    except (OSError, TypeError):
        return "unknown"
    return hashlib.sha256(text).hexdigest()[:16]


def obstacle(thing: Any) -> str | None:
    """Say why another process could not find a class or function; None if it can."""
    if thing.__module__ == "__main__":
        return f"{thing.__qualname__} is defined in the main script; put it into a file of its own to import it"
    if "<" in thing.__qualname__:
        return f"{thing.__qualname__} is defined inside a function; put it at the top of a file"
    return None


def reference(thing: Any) -> dict[str, str]:
    """Say in plain data where a class or function is."""
    return {"module": thing.__module__, "name": thing.__qualname__, "file": inspect.getfile(thing)}


def resolve(place: dict[str, str]) -> Any:
    """Find what `reference` told of, in another process."""
    try:
        module = importlib.import_module(place["module"])
    except ImportError:
        module = load_file(Path(place["file"]))
    found: Any = module
    for name in place["name"].split("."):
        found = getattr(found, name)
    return found
