"""The user's own classes and functions: imported from their files, told apart by their text, found again elsewhere.

Importing a file executes it. Whoever works with settings of others can forbid that: every such file goes through
`load_file`, which refuses it then.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from protonorm.core.own_failures import PREFIX, import_failure, in_few
from protonorm.core.own_text import TEXT, edited, fingerprint, imported_text, refuse_edited
from protonorm.core.registry import nearest
from protonorm.core.torchvision_import import importable_torchvision

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
            f"{in_few(str(path))} is refused: importing it would execute it, "
            f"and --no-own-code or {VARIABLE} forbids that."
        )


def load_own(place: str, kind: str) -> Any:
    """Import a class or function from a user's own file: path/to/file.py:Name."""
    path, _, name = place.rpartition(":")
    if not path.endswith(".py"):
        more = f" Its settings stand beside it, as {kind}.NAME=VALUE." if ".py:" in path else ""
        raise ValueError(f"{in_few(place)} is no {kind} of your own: expected file.py:NAME.{more}")
    module = load_file(Path(path))
    if not hasattr(module, name):
        there = _offered(module)
        which = nearest(in_few(name), there) if there else "it defines no function and no class."
        raise ValueError(f"{in_few(str(path))} has no {kind} {in_few(name)!r}; {which}")
    return getattr(module, name)


def _offered(module: ModuleType) -> list[str]:
    """Name what can be chosen in a file: what it defines, or else all that it has imported by name."""
    found = {name: one for name, one in vars(module).items() if callable(one) and not name.startswith("_")}
    return [name for name, one in found.items() if getattr(one, "__module__", "") == module.__name__] or list(found)


def name_missing(text: str, kind: str) -> None:
    """Refuse a file without the name of what is meant in it; it is not executed."""
    if text.endswith(".py"):
        raise ValueError(f"{in_few(text)} is a file: name the {kind} in it as {in_few(Path(text).name)}:NAME.")


def load_file(path: Path) -> ModuleType:
    """Import a user's own file, once for each text that it has, unless own code is forbidden."""
    refuse_own_code(path)
    if not os.path.isfile(path):  # which takes any text, whatever characters it has
        raise ValueError(f"There is no Python file {in_few(str(path))}.")
    name, text = _module_name(path.resolve()), path.read_bytes()
    before = sys.modules.get(name)
    if before is not None and getattr(before, TEXT, text) == text:
        return before
    linecache.checkcache(str(path.resolve()))  # where lines of source are looked up
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None:
        raise ValueError(f"There is no Python file {in_few(str(path))}.")
    module = importlib.util.module_from_spec(spec)
    setattr(module, TEXT, text)
    sys.modules[name] = module
    try:
        with importable_torchvision():
            exec(compile(text, str(path.resolve()), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]  # it is not whole
        if isinstance(error, KeyboardInterrupt | MemoryError):
            raise
        plain = isinstance(error, SyntaxError | ImportError | SystemExit)  # there is nothing more to know
        raise ValueError(import_failure(error, path)) from (None if plain else error)
    return module


def _module_name(path: Path) -> str:
    """Name the module of a file; of two files of one name in different folders, the second has a mark of its place."""
    name = f"{PREFIX}{path.stem}"
    if name not in sys.modules or sys.modules[name].__file__ == str(path):
        return name
    return f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def obstacle(thing: Any) -> str | None:
    """Say why another process could not find a class or function; None if it can."""
    if thing.__module__ == "__main__":
        return f"{thing.__qualname__} is defined in the main script; put it into a file of its own to import it"
    if "<" in thing.__qualname__:
        return f"{thing.__qualname__} is defined inside a function; put it at the top of a file"
    return None


def reference(thing: Any) -> dict[str, str]:
    """Say in plain data where a class or function is, and which text of its file was imported."""
    refuse_edited(thing)
    file = inspect.getfile(inspect.unwrap(thing))
    text = "" if imported_text(thing) is None else fingerprint(thing)
    return {"module": thing.__module__, "name": thing.__qualname__, "file": file, "text": text}


def resolve(place: dict[str, str]) -> Any:
    """Find what `reference` told of, in another process; a module of that name may be another file there."""
    file = Path(place["file"]).resolve()
    try:
        with importable_torchvision():
            module = importlib.import_module(place["module"])
    except ImportError:
        module = load_file(file)
    if module.__file__ and Path(module.__file__).resolve() != file:
        module = load_file(file)
    found: Any = module
    for name in place["name"].split("."):
        found = getattr(found, name)
    if place["text"] and fingerprint(found) != place["text"]:
        raise edited(file)
    return found
