"""Things with settings of their own — a method, a data set, a partition — from plain data and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from protonorm.config.kinds import KINDS
from protonorm.core.own_code import fingerprint, load_own
from protonorm.core.registry import Entry, find, nearest
from protonorm.core.types import shortened, shown

COMPLAINTS = 5  # that are made at once


def build(kind: str, value: Any) -> Any:
    """Make what a name, or {"name": …, settings}, stands for; an object of the right kind is taken as it is."""
    made = _make(kind, value)
    needs = KINDS[kind].needs
    if isinstance(made, type) or not callable(getattr(made, needs, None)):
        raise ValueError(
            f"{shown(value)} is not {KINDS[kind].article} {kind}: expected a name, or an object with {needs}()."
        )
    return made


def _make(kind: str, value: Any) -> Any:
    table = KINDS[kind].table()
    value = _with_path(table, {"name": value} if isinstance(value, str) else value)
    if not isinstance(value, Mapping):
        return value
    settings = dict(value)
    name = settings.pop("name", KINDS[kind].default)
    if not isinstance(name, str):
        raise ValueError(
            f"{shown(name)} is not the name of {KINDS[kind].article} {kind}; known: {', '.join(sorted(table))}."
        )
    cls = load_own(name, kind) if ".py:" in name else find(table, shortened(name), kind).load()
    try:
        made = TypeAdapter(cls).validate_python(settings)
    except ValidationError as error:
        raise ValueError(sentences(error, known_fields(cls), f"{kind} {shortened(name)}", f"{kind}.")) from None
    _check_paths(made, settings, kind)
    return made


def _check_paths(made: Any, given: Mapping[str, Any], kind: str) -> None:
    """Refuse an empty path, which would mean the current folder, and the home of a user who is not known."""
    for field in fields(made) if is_dataclass(made) else ():
        path, name = getattr(made, field.name), f"{kind}.{field.name}"
        if not isinstance(path, Path):
            continue
        if given.get(field.name) == "":
            raise ValueError(f"{name}='' is refused: expected the path of a file or folder.")
        try:
            path.expanduser()
        except RuntimeError:
            home = shortened(path.parts[0])
            raise ValueError(
                f"{name}={shown(str(path))} is refused: nobody knows the home folder that {home} means."
            ) from None


def _with_path(table: Mapping[str, Entry], value: Any) -> Any:
    """Read folder:PATH as the component `folder` with the setting path=PATH."""
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or ".py:" in name:
        return value
    base, colon, path = name.partition(":")
    return {**value, "name": base, "path": path} if colon and base in table else value


def describe(kind: str, value: Any) -> dict[str, Any]:
    """Write a component as plain data: its name and settings; a user's own by where it is and what it says."""
    if hasattr(value, "description"):
        return dict(value.description())
    settings = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    name = registered_name(kind, value)
    if name:
        return {"name": name, **settings}
    cls = type(value)
    return {"name": f"{cls.__module__}:{cls.__qualname__}", "source": fingerprint(cls), **settings}


def registered_name(kind: str, value: Any) -> str | None:
    """Find the name of a component in its table; None for one of the user's own."""
    place = f"{type(value).__module__}:{type(value).__qualname__}"
    return next((name for name, entry in KINDS[kind].table().items() if entry.target == place), None)


def changed_fields(value: Any, prefix: str, usual: Any = None) -> dict[str, Any]:
    """List the settings of a component that differ from the usual ones, named as on the command line.

    The usual ones are those of `usual`, or the defaults of the component's class.
    """
    found: dict[str, Any] = {}
    for field in fields(value) if is_dataclass(value) else ():
        given = getattr(value, field.name)
        default = getattr(usual, field.name) if usual is not None else _default(field)
        if given == default or not field.compare or field.name == "path":
            continue
        name = f"{prefix}.{field.name}"
        found |= changed_fields(given, name) if is_dataclass(given) else {name: given}
    return found


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def known_fields(cls: Any) -> dict[str, list[str]]:
    """List the settings that a class takes, each with the settings that it has itself."""
    found: dict[str, list[str]] = {}
    for field in fields(cls) if is_dataclass(cls) else ():
        default = _default(field)
        found[field.name] = list(known_fields(type(default))) if is_dataclass(default) else []
    return found


def sentences(error: ValidationError, known: Mapping[str, Any], owner: str, prefix: str = "") -> str:
    """Say what is wrong with settings in words for the person who gave them, a line for each setting."""
    found: dict[str, Any] = {}  # of a value that could be of several kinds, the first complaint, or one of its members
    for item in error.errors():
        field, _ = _named(item["loc"], known)
        if field not in found or (_is_member(item) and not _is_member(found[field])):
            found[field] = item
    lines = [_sentence(item, known, owner, prefix) for item in found.values()]
    more = [f"There are {len(lines) - COMPLAINTS} more like these."] if len(lines) > COMPLAINTS else []
    return "\n".join([*lines[:COMPLAINTS], *more])


def _sentence(item: Any, known: Mapping[str, Any], owner: str, prefix: str) -> str:
    field, names = _named(item["loc"], known)
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{owner} has no setting {shown(prefix + field)}; {nearest(shortened(field.split('.')[-1]), names)}"
    if item["type"] in ("missing", "missing_argument"):
        return f"{owner} needs the setting {prefix}{field}."
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    message = item["msg"][0].lower() + item["msg"][1:]
    member = f", number {item['loc'][-1] + 1} of the list," if _is_member(item) else ""
    return f"{prefix}{shortened(field)}={shown(item['input'])}{member} is refused: {message}."


def _is_member(item: Any) -> bool:
    """Tell whether a complaint is about one value of a list."""
    return len(item["loc"]) > 1 and isinstance(item["loc"][-1], int)


def _named(place: tuple[int | str, ...], known: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    """Name the setting that a complaint is about, and the settings that there are in its place."""
    first = str(place[0]) if place else ""
    inner = known.get(first)
    if isinstance(inner, list) and inner and len(place) > 1:
        return f"{first}.{place[1]}", [f"{first}.{name}" for name in inner]
    return first, known
