"""User-defined classes and functions: imported from files, identified by fingerprints, resolved in other processes.

Importing a file executes it. To work with untrusted settings this can be forbidden: every such file goes through
`load_file`, which then raises. Files may import torchvision even if its compiled operators do not match torch:
operators linked to CUDA do not load, but torchvision only registers them, for which their signatures are enough.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from protonorm.core.own_failures import PREFIX, import_failure, in_few
from protonorm.core.registry import nearest

VARIABLE = "PROTONORM_NO_OWN_CODE"  # environment variable; any value but 0 forbids user code
TEXT = "__own_text__"  # module attribute: the file's content when it was imported; an edited file is imported again
PLAIN = (bool, int, float, str, type(None))
MISSING = "operator torchvision::nms does not exist"
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_defined: list[Any] = []  # keeps libraries alive: a definition lasts as long as its object

_forbidden: ContextVar[bool] = ContextVar("own_code_forbidden", default=False)


@contextmanager
def without_own_code(wanted: bool = True) -> Iterator[None]:
    """Forbid the import of user files inside the context."""
    before = _forbidden.set(wanted or _forbidden.get())
    try:
        yield
    finally:
        _forbidden.reset(before)


def refuse_own_code(path: Path) -> None:
    """Raise ValueError for a user file if user code is forbidden."""
    if _forbidden.get() or os.environ.get(VARIABLE, "") not in ("", "0"):
        raise ValueError(
            f"{in_few(str(path))} is refused: importing it would execute it, "
            f"and --no-own-code or {VARIABLE} forbids that."
        )


def load_own(place: str, kind: str) -> Any:
    """Import a class or function from a user file: path/to/file.py:Name."""
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
    """List the callables that a file defines, or all public callables in it if it defines none."""
    found = {name: one for name, one in vars(module).items() if callable(one) and not name.startswith("_")}
    return [name for name, one in found.items() if getattr(one, "__module__", "") == module.__name__] or list(found)


def name_missing(text: str, kind: str) -> None:
    """Raise ValueError for a file without the name of an object in it; the file is not executed."""
    if text.endswith(".py"):
        raise ValueError(f"{in_few(text)} is a file: name the {kind} in it as {in_few(Path(text).name)}:NAME.")


def load_file(path: Path) -> ModuleType:
    """Import a user file, once for each content that it has; raise ValueError if user code is forbidden."""
    refuse_own_code(path)
    if not os.path.isfile(path):  # unlike Path.is_file, it never raises
        raise ValueError(f"There is no Python file {in_few(str(path))}.")
    name, text = _module_name(path.resolve()), path.read_bytes()
    before = sys.modules.get(name)
    if before is not None and getattr(before, TEXT, text) == text:
        return before
    linecache.checkcache(str(path.resolve()))  # inspect and traceback read source lines from this cache
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
        del sys.modules[name]  # partially initialised
        if isinstance(error, KeyboardInterrupt | MemoryError):
            raise
        plain = isinstance(error, SyntaxError | ImportError | SystemExit)  # the traceback adds nothing
        raise ValueError(import_failure(error, path)) from (None if plain else error)
    return module


def _module_name(path: Path) -> str:
    """Return the module name of a file; a hash of the path separates files of the same name in different folders."""
    name = f"{PREFIX}{path.stem}"
    if name not in sys.modules or sys.modules[name].__file__ == str(path):
        return name
    return f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def obstacle(thing: Any) -> str | None:
    """Return why another process could not import a class or function; None if it can."""
    if thing.__module__ == "__main__":
        return f"{thing.__qualname__} is defined in the main script; put it into a file of its own to import it"
    if "<" in thing.__qualname__:
        return f"{thing.__qualname__} is defined inside a function; put it at the top of a file"
    return None


def reference(thing: Any) -> dict[str, str]:
    """Return a JSON-compatible reference to a class or function, with the fingerprint of its imported file."""
    refuse_edited(thing)
    file = inspect.getfile(inspect.unwrap(thing))
    text = "" if imported_text(thing) is None else fingerprint(thing)
    return {"module": thing.__module__, "name": thing.__qualname__, "file": file, "text": text}


def resolve(place: dict[str, str]) -> Any:
    """Import the target of a `reference` in another process, where a module of that name may be another file."""
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


def own_name(thing: Any) -> str:
    """Return the name of a class or function as on the command line: file.py:Name, or module:Name for a library."""
    path = _file(thing)
    if path is None:
        return f"{thing.__module__}:{thing.__qualname__}"
    if inside := _in_library(path):
        return f"{inside}:{thing.__qualname__}"
    return f"{path.name}:{thing.__qualname__}"


def is_installed(thing: Any) -> bool:
    """Return whether a class or function belongs to this package or a library rather than to a user file."""
    path = _file(thing)
    return thing.__module__.partition(".")[0] == "protonorm" or path is None or bool(_in_library(path))


def imported_text(thing: Any) -> bytes | None:
    """Return the content of a user file when a class or function was imported from it; None if not recorded."""
    held = [one.__globals__ for one in _functions(inspect.unwrap(thing))]  # sys.modules may have a newer module
    held.append(vars(sys.modules.get(thing.__module__, inspect)))
    return next((names[TEXT] for names in held if TEXT in names), None)


def refuse_edited(thing: Any) -> None:
    """Raise ValueError if the file of a class or function has changed since it was imported."""
    path, imported = _file(thing), imported_text(thing)
    if path and imported is not None and path.read_bytes() != imported:
        raise edited(path)


def edited(path: Path) -> ValueError:
    """Return the error for a user file that was changed since it was imported."""
    return ValueError(
        f"{path.name} was changed since it was imported here, so that other processes would execute another text: "
        "give the command again, or load it again."
    )


def fingerprint(thing: Any) -> str:
    """Return the first 16 digits of the SHA-256 of the file of a class or function, as it was imported.

    The hash includes the values of its closure. Without a file, as in a notebook, its source is hashed instead.
    """
    contents = _contents(thing, set())
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:16] if contents else "unknown"


def _contents(thing: Any, seen: set[int]) -> list[bytes]:
    """List the content that identifies a class or function: its file or source, and the values of its closure."""
    content = _content(thing)
    if content is None or id(thing) in seen:
        return []
    found = [content]
    for cell in getattr(inspect.unwrap(thing), "__closure__", None) or ():
        with suppress(ValueError):  # the cell is still empty
            kept = cell.cell_contents
            found += [repr(kept).encode()] if isinstance(kept, PLAIN) else []
            found += _contents(kept, seen | {id(thing)}) if isinstance(kept, FunctionType | type) else []
    return found


def _content(thing: Any) -> bytes | None:
    """Return the file of a class or function; without a file, its source or that of its functions."""
    if path := _file(thing):
        content = imported_text(thing)
        return path.read_bytes() if content is None else content
    for things in ([thing], _functions(thing)):
        with suppress(OSError, TypeError):
            return "\n".join(map(inspect.getsource, things)).encode() or None
    return None


def _file(thing: Any) -> Path | None:
    """Find the file that defines a class or function; None in a notebook or at a prompt."""
    thing = inspect.unwrap(thing)
    names = [one.__code__.co_filename for one in _functions(thing)]
    with suppress(OSError, TypeError):
        names.append(inspect.getfile(thing))  # last: for a class it uses the module's name, which two files may share
    paths = (Path(name) for name in names if name.endswith(".py"))
    return next((path.resolve() for path in paths if path.is_file()), None)


def _functions(thing: Any) -> list[FunctionType]:
    """List a function itself, or the functions that a class defines."""
    if isinstance(thing, FunctionType):
        return [thing]
    held = [one for one in vars(thing).values() if isinstance(one, FunctionType)] if isinstance(thing, type) else []
    return [one for one in held if one.__globals__.get("__name__") == thing.__module__]  # decorators may add others


def _in_library(path: Path) -> str:
    """Return the module name of a file among the installed libraries; empty if it is not there."""
    places = {sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")} | {site.getusersitepackages()}
    for place in sorted((Path(one).resolve() for one in places), key=lambda one: -len(one.parts)):
        if path.is_relative_to(place):
            parts = path.relative_to(place).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return ""


@contextmanager
def importable_torchvision() -> Iterator[None]:
    """Make torchvision importable inside the context, without its compiled operators if they do not load."""
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class Finder(MetaPathFinder):
    """Import finder that handles only torchvision."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torchvision's spec with a loader that retries; None for any other module."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torchvision" else None
        if spec is not None and spec.loader is not None:
            spec.loader = Twice(spec.loader)
        return spec


class Twice(Loader):
    """Loader that retries a module after declaring its missing operators."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as get_source, for tracebacks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with the wrapped loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module; once more if operators were missing."""
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
