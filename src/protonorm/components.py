"""Things with settings of their own — a method, a data set, a partition — from plain data and back."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from protonorm.registry import Entry, find, nearest


def build(table: Mapping[str, Entry], kind: str, value: Any, usual: str) -> Any:
    """Make what a name, or {"name": …, settings}, stands for; the usual one if it has no name; an object is let by."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return value
    settings = dict(value)
    name = settings.pop("name", usual)
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not the name of a {kind}; known: {', '.join(sorted(table))}.")
    cls = load_own(name, kind) if ".py:" in name else find(table, name, kind).load()
    try:
        return TypeAdapter(cls).validate_python(settings)
    except ValidationError as error:
        known = [field.name for field in fields(cls)]
        raise ValueError(sentences(error, known, f"{kind} {name}", f"{kind}.")) from None


def located(table: Mapping[str, Entry], value: Any) -> Any:
    """Read folder:PATH as the component `folder` with the setting path=PATH, wherever a name is given."""
    name = value.get("name") if isinstance(value, Mapping) else value
    if not isinstance(name, str) or ".py:" in name:
        return value
    kind, colon, path = name.partition(":")
    if not colon or kind not in table:
        return value
    return {**(value if isinstance(value, Mapping) else {}), "name": kind, "path": path}


def describe(table: Mapping[str, Entry], value: Any) -> dict[str, Any]:
    """Write a component as plain data: its name and settings; a user's own by where it is and what it says."""
    if hasattr(value, "description"):
        return dict(value.description())
    cls = type(value)
    place = f"{cls.__module__}:{cls.__qualname__}"
    names = [name for name, entry in table.items() if entry.target == place]
    settings = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    return {"name": names[0], **settings} if names else {"name": place, "source": fingerprint(cls), **settings}


def load_own(place: str, kind: str) -> Any:
    """Import a class from a user's own file: path/to/file.py:Class."""
    path, _, name = place.rpartition(":")
    module = load_file(Path(path))
    if not hasattr(module, name):
        found = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise ValueError(f"{path} has no {kind} {name!r}; {nearest(name, found)}")
    return getattr(module, name)


def load_file(path: Path) -> ModuleType:
    """Import a user's own file, once."""
    name = f"protonorm_own_{path.stem}"  # a name that no library has
    if name in sys.modules and sys.modules[name].__file__ == str(path.resolve()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"There is no Python file {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
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


def sentences(error: ValidationError, known: Iterable[str], owner: str, prefix: str = "") -> str:
    """Say what is wrong with settings in words for the person who gave them, a line for each setting."""
    lines: dict[str, str] = {}
    for item in error.errors():
        field = str(item["loc"][0]) if item["loc"] else ""
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            line = f"{owner} has no setting {prefix + field!r}; {nearest(field, known)}"
        elif item["type"] in ("missing", "missing_argument"):
            line = f"{owner} needs the setting {prefix}{field}."
        elif item["type"] == "value_error":
            line = str(item["ctx"]["error"])
        else:
            message = item["msg"][0].lower() + item["msg"][1:]
            line = f"{prefix}{field}={item['input']!r} is refused: {message}."
        lines.setdefault(field, line)  # the first complaint of a value that could be of several kinds
    return "\n".join(lines.values())
