"""User-defined classes and functions: imported from files, identified by fingerprints, resolved in other processes.

Importing a file executes it. To work with untrusted settings this can be forbidden: every such file goes through
`load_file`, which then raises. Files may import torchvision even if its compiled operators do not match torch:
operators linked to CUDA do not load, but torchvision only registers them, for which their signatures are enough.
"""

import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from protonorm.core.own_failures import PREFIX, import_failure, truncate
from protonorm.core.registry import nearest

VARIABLE = "PROTONORM_NO_OWN_CODE"  # environment variable; any value but 0 forbids user code
TEXT = "__own_text__"  # module attribute: the file's content when it was imported; an edited file is imported again
PLAIN = (bool, int, float, str, type(None))
MISSING = "operator torchvision::nms does not exist"
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_defined: list[Any] = []  # keeps libraries alive: a definition lasts as long as its object

_forbidden: ContextVar[bool] = ContextVar("own_code_forbidden", default=False)


@contextmanager
def without_own_code(forbidden: bool = True) -> Iterator[None]:
    """Forbid the import of user files inside the context."""
    token = _forbidden.set(forbidden or _forbidden.get())
    try:
        yield
    finally:
        _forbidden.reset(token)


def refuse_own_code(path: Path) -> None:
    """Raise ValueError for a user file if user code is forbidden."""
    if _forbidden.get() or os.environ.get(VARIABLE, "") not in ("", "0"):
        raise ValueError(
            f"{truncate(str(path))} must not be imported: importing it would execute it, "
            f"and --no-own-code or {VARIABLE} forbids that."
        )


def load_own(location: str, kind: str) -> Any:
    """Import a class or function from a user file: path/to/file.py:Name."""
    path, _, name = location.rpartition(":")
    if not path.endswith(".py"):
        note = f" Its settings stand beside it, as {kind}.NAME=VALUE." if ".py:" in path else ""
        raise ValueError(f"{truncate(location)} is no {kind} of your own: expected file.py:NAME.{note}")
    module = load_file(Path(path))
    if not hasattr(module, name):
        public = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
        defined = [key for key, value in public.items() if getattr(value, "__module__", "") == module.__name__]
        hint = nearest(truncate(name), defined or public) if public else "it defines no function and no class."
        raise ValueError(f"{truncate(path)} has no {kind} {truncate(name)!r}; {hint}")
    return getattr(module, name)


def name_missing(text: str, kind: str) -> None:
    """Raise ValueError for a file without the name of an object in it; the file is not executed."""
    if text.endswith(".py"):
        raise ValueError(f"{truncate(text)} is a file: name the {kind} in it as {truncate(Path(text).name)}:NAME.")


def load_file(path: Path) -> ModuleType:
    """Import a user file, once for each content that it has; raise ValueError if user code is forbidden."""
    refuse_own_code(path)
    spec = None
    if os.path.isfile(path):  # unlike Path.is_file, it never raises
        name = f"{PREFIX}{path.stem}"
        if name in sys.modules and sys.modules[name].__file__ != str(path.resolve()):  # of the same name elsewhere
            name += f"_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
        spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None:
        raise ValueError(f"There is no Python file {truncate(str(path))}.")
    name, file, text = spec.name, str(path.resolve()), path.read_bytes()
    previous = sys.modules.get(name)
    if previous is not None and getattr(previous, TEXT, text) == text:
        return previous
    linecache.checkcache(file)  # inspect and traceback read source lines from this cache
    module = importlib.util.module_from_spec(spec)
    setattr(module, TEXT, text)
    sys.modules[name] = module
    try:
        with importable_torchvision():
            exec(compile(text, file, "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]  # partially initialised
        if isinstance(error, KeyboardInterrupt | MemoryError):
            raise
        expected = isinstance(error, SyntaxError | ImportError | SystemExit)  # the traceback adds nothing
        raise ValueError(import_failure(error, path)) from (None if expected else error)
    return module


def obstacle(obj: Any) -> str | None:
    """Return why another process could not import a class or function; None if it can."""
    if obj.__module__ == "__main__":
        return f"{obj.__qualname__} is defined in the main script; put it into a file of its own to import it"
    if "<" in obj.__qualname__:
        return f"{obj.__qualname__} is defined inside a function; put it at the top of a file"
    return None


def reference(obj: Any) -> dict[str, str]:
    """Return a JSON reference to a class or function, with a fingerprint; raise a ValueError if its file changed."""
    path, imported = _file(obj), _imported_text(obj)
    if path and imported is not None and path.read_bytes() != imported:
        raise edited(path)
    file = inspect.getfile(inspect.unwrap(obj))
    text = "" if imported is None else fingerprint(obj)
    return {"module": obj.__module__, "name": obj.__qualname__, "file": file, "text": text}


def resolve(location: dict[str, str]) -> Any:
    """Import the target of a `reference` in another process, where a module of that name may be another file."""
    file = Path(location["file"]).resolve()
    try:
        with importable_torchvision():
            module = importlib.import_module(location["module"])
    except ImportError:
        module = load_file(file)
    if module.__file__ and Path(module.__file__).resolve() != file:
        module = load_file(file)
    target = attrgetter(location["name"])(module)
    if location["text"] and fingerprint(target) != location["text"]:
        raise edited(file)
    return target


def own_name(obj: Any) -> str:
    """Return the name of a class or function as on the command line: file.py:Name, or module:Name for a library."""
    path = _file(obj)
    return f"{(_in_library(path) or path.name) if path else obj.__module__}:{obj.__qualname__}"


def is_installed(obj: Any) -> bool:
    """Return whether a class or function belongs to this package or a library rather than to a user file."""
    path = _file(obj)
    return obj.__module__.partition(".")[0] == "protonorm" or path is None or bool(_in_library(path))


def _imported_text(obj: Any) -> bytes | None:
    """Return the content of a user file when a class or function was imported from it; None if not recorded."""
    modules = [function.__globals__ for function in _functions(inspect.unwrap(obj))]
    modules.append(vars(sys.modules.get(obj.__module__, inspect)))  # last: it may be a newer import of the file
    return next((names[TEXT] for names in modules if TEXT in names), None)


def edited(path: Path) -> ValueError:
    """Return the error for a user file that was changed since it was imported."""
    return ValueError(
        f"{path.name} was changed since it was imported here, so that other processes would execute another text: "
        "give the command again, or load it again."
    )


def fingerprint(obj: Any) -> str:
    """Return the first 16 digits of the SHA-256 of the file of a class or function, as it was imported.

    The hash includes the values of its closure. Without a file, as in a notebook, its source is hashed instead.
    """
    contents = _contents(obj, set())
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:16] if contents else "unknown"


def _contents(obj: Any, visited: set[int]) -> list[bytes]:
    """List the content that identifies a class or function: its file or source, and the values of its closure."""
    content = _content(obj)
    if content is None or id(obj) in visited:
        return []
    contents = [content]
    for cell in getattr(inspect.unwrap(obj), "__closure__", None) or ():
        with suppress(ValueError):  # the cell is still empty
            value = cell.cell_contents
            contents += [repr(value).encode()] if isinstance(value, PLAIN) else []
            contents += _contents(value, visited | {id(obj)}) if isinstance(value, FunctionType | type) else []
    return contents


def _content(obj: Any) -> bytes | None:
    """Return the file of a class or function; without a file, its source or that of its functions."""
    if path := _file(obj):
        content = _imported_text(obj)
        return path.read_bytes() if content is None else content
    for objects in ([obj], _functions(obj)):
        with suppress(OSError, TypeError):
            return "\n".join(map(inspect.getsource, objects)).encode() or None
    return None


def _file(obj: Any) -> Path | None:
    """Find the file that defines a class or function; None in a notebook or at a prompt."""
    obj = inspect.unwrap(obj)
    names = [function.__code__.co_filename for function in _functions(obj)]
    with suppress(OSError, TypeError):
        names.append(inspect.getfile(obj))  # last: for a class it uses the module's name, which two files may share
    paths = (Path(name) for name in names if name.endswith(".py"))
    return next((path.resolve() for path in paths if path.is_file()), None)


def _functions(obj: Any) -> list[FunctionType]:
    """List a function itself, or the functions that a class defines."""
    if isinstance(obj, FunctionType):
        return [obj]
    members = vars(obj).values() if isinstance(obj, type) else ()
    functions = [member for member in members if isinstance(member, FunctionType)]
    own = obj.__module__  # decorators add functions of other modules
    return [function for function in functions if function.__globals__.get("__name__") == own]


def _in_library(path: Path) -> str:
    """Return the module name of a file among the installed libraries; empty if it is not there."""
    names = [*(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")), site.getusersitepackages()]
    folders = [folder for name in names if path.is_relative_to(folder := Path(name).resolve())]
    if not folders:
        return ""
    inner = path.relative_to(max(folders, key=lambda folder: len(folder.parts)))
    return ".".join((inner.parent if inner.name == "__init__.py" else inner.with_suffix("")).parts)


@contextmanager
def importable_torchvision() -> Iterator[None]:
    """Make torchvision importable inside the context, without its compiled operators if they do not load."""
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class Finder:
    """Import finder for torchvision alone, whose loader retries after declaring missing operators."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return torchvision's spec; None for any other module."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torchvision" else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = partial(_execute, execute)  # type: ignore[method-assign]  # of this loader alone
        return spec


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Execute torchvision; once more, after declaring its operators, if they were missing."""
    try:
        execute(module)
    except RuntimeError as error:
        if MISSING not in str(error) or _defined:
            raise
        from torch.library import Library

        library = Library("torchvision", "DEF")
        _defined.append(library)
        for name in ("nms", "qnms"):
            library.define(name + SIGNATURE)
        execute(module)
