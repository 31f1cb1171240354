"""The user's own classes and functions: imported from their files, told apart by their text, found again elsewhere.

Importing a file executes it. Whoever works with settings of others can forbid that: every such file goes through
`load_file`, which refuses it then.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from protonorm.core.registry import nearest
from protonorm.core.text import visible

PREFIX = "protonorm_own_"  # of the names of modules that are users' files: no library has it
LONGEST = 200  # characters of a path in a sentence
VARIABLE = "PROTONORM_NO_OWN_CODE"  # in the environment; anything but 0 forbids

_forbidden: ContextVar[bool] = ContextVar("own_code_forbidden", default=False)


@contextmanager
def without_own_code(wanted: bool = True) -> Iterator[None]:
    """Import no file of a user's own while this lasts."""
    before = _forbidden.set(wanted or _forbidden.get())
    try:
        yield
    finally:
        _forbidden.reset(before)


def refuse_own_code(path: Path) -> None:
    """Refuse a user's own file where own code is forbidden."""
    if _forbidden.get() or os.environ.get(VARIABLE, "") not in ("", "0"):
        raise ValueError(
            f"{_shown(path)} is refused: importing it would execute it, and --no-own-code or {VARIABLE} forbids that."
        )


def load_own(place: str, kind: str) -> Any:
    """Import a class or function from a user's own file: path/to/file.py:Name."""
    path, _, name = place.rpartition(":")
    module = load_file(Path(path))
    if not name or not hasattr(module, name):
        found = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise ValueError(f"{_shown(path)} has no {kind} {_shown(name)!r}; {nearest(name[:LONGEST], found)}")
    return getattr(module, name)


def load_file(path: Path) -> ModuleType:
    """Import a user's own file, once, unless own code is forbidden."""
    refuse_own_code(path)
    if not os.path.isfile(path):  # which takes any text, whatever characters it has
        raise ValueError(f"There is no Python file {_shown(path)}.")
    name = f"{PREFIX}{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path.resolve()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ValueError(f"There is no Python file {_shown(path)}.")
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


def _shown(path: Path | str) -> str:
    """Write a path in a sentence: one line, and not too long a one."""
    text = visible(str(path)[: LONGEST + 1])
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
