"""What is wrong with settings, in sentences for the person who gave them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from pydantic import ValidationError

from protonorm.core.registry import nearest
from protonorm.core.types import shortened, shown

COMPLAINTS = 5  # that are made at once

Hint = Callable[[str], str | None]  # from the name of a setting that is not there to what may be meant


def known_fields(cls: Any) -> dict[str, list[str]]:
    """List the settings that a class takes, each with the settings that it has itself."""
    found: dict[str, list[str]] = {}
    for field in fields(cls) if is_dataclass(cls) else ():
        if field.init:
            default = default_of(field)
            found[field.name] = list(known_fields(type(default))) if is_dataclass(default) else []
    return found


def default_of(field: Any) -> Any:
    """Give the value of a dataclass's field that is not given."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def unknown(name: str, known: Iterable[str], owner: str, prefix: str = "", hint: Hint | None = None) -> str:
    """Say that there is no such setting, and which there are."""
    told = hint(name) if hint else None
    told = told or (nearest(shortened(_last(name)), known, _last) if list(known) else "it has none.")
    return f"{owner} has no setting {shown(prefix + name)}; {told}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def sentences(
    error: ValidationError, known: Mapping[str, Any], owner: str, prefix: str = "", hint: Hint | None = None
) -> str:
    """Say what is wrong with settings in words for the person who gave them, a line for each setting."""
    found: dict[str, Any] = {}  # of a value that could be of several kinds, the first complaint, or one of its members
    for item in error.errors():
        field, _ = _named(item["loc"], known)
        if field not in found or (_is_member(item) and not _is_member(found[field])):
            found[field] = item
    lines = [_sentence(item, known, owner, prefix, hint) for item in found.values()]
    more = [f"There are {len(lines) - COMPLAINTS} more like these."] if len(lines) > COMPLAINTS else []
    return "\n".join([*lines[:COMPLAINTS], *more])


def _sentence(item: Any, known: Mapping[str, Any], owner: str, prefix: str, hint: Hint | None) -> str:
    field, names = _named(item["loc"], known)
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown(field, names, owner, prefix, hint)
    if item["type"] in ("missing", "missing_argument"):
        return f"{owner} needs the setting {prefix}{field}."
    if item["type"] == "unexpected_positional_argument":
        return f"{owner} takes {len(known)} settings at most: {', '.join(known)}."
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
    if place and isinstance(place[0], int):  # a value that was given without its name
        first = [*known, str(place[0])][min(place[0], len(known))]
    inner = known.get(first)
    if isinstance(inner, list) and inner and len(place) > 1:
        return f"{first}.{place[1]}", [f"{first}.{name}" for name in inner]
    return first, known
