"""Dataclasses whose fields are settings, and error messages for invalid settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import wraps
from itertools import islice
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as validated

from protonorm.core.registry import nearest
from protonorm.core.types import shortened, shown

Made = TypeVar("Made")
COMPLAINTS = 5  # largest number of errors in a message

Hint = Callable[[str], str | None]  # maps the name of an unknown setting to a hint


@dataclass_transform(field_specifiers=(field, Field))
def dataclass(*, frozen: bool, config: ConfigDict) -> Callable[[type[Made]], type[Made]]:
    """Create a dataclass that validates its fields and raises plain ValueErrors instead of pydantic's."""

    def decorate(cls: type[Made]) -> type[Made]:
        made: Any = validated(cls, frozen=frozen, config=config)
        check = made.__init__

        @wraps(check)
        def init(self: Any, *values: Any, **settings: Any) -> None:
            try:
                check(self, *values, **settings)
            except ValidationError as error:
                raise ValueError(sentences(error, known_fields(type(self)), type(self).__name__)) from None

        made.__init__ = init
        kept: type[Made] = made
        return kept

    return decorate


def known_fields(cls: Any) -> dict[str, list[str]]:
    """Return the settings of a class, each with the names of its nested settings."""
    found: dict[str, list[str]] = {}
    for one in fields(cls) if is_dataclass(cls) else ():
        if one.init:
            default = default_of(one)
            found[one.name] = list(known_fields(type(default))) if is_dataclass(default) else []
    return found


def default_of(given: Any) -> Any:
    """Return the default of a dataclass field."""
    return given.default_factory() if given.default_factory is not MISSING else given.default


def unknown(name: str, known: Iterable[str], owner: str, prefix: str = "", hint: Hint | None = None) -> str:
    """Return the message for an unknown setting, with the known settings."""
    told = hint(name) if hint else None
    told = told or (nearest(shortened(_last(name)), known, _last) if list(known) else "it has none.")
    return f"{owner} has no setting {shown(prefix + name)}; {told}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def sentences(
    error: ValidationError, known: Mapping[str, Any], owner: str, prefix: str = "", hint: Hint | None = None
) -> str:
    """Format validation errors for users, with a line for each setting."""
    found: dict[str, Any] = {}  # for a union type, the first error, or preferably an error of a list member
    for item in error.errors(include_url=False):
        field, _ = _named(item["loc"], known)
        if field not in found or (_is_member(item) and not _is_member(found[field])):
            found[field] = item
    lines = [_sentence(item, known, owner, prefix, hint) for item in islice(found.values(), COMPLAINTS)]
    more = [f"There are {len(found) - COMPLAINTS} more like these."] if len(found) > COMPLAINTS else []
    return "\n".join([*lines, *more])


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
    """Return whether an error concerns a member of a list."""
    return len(item["loc"]) > 1 and isinstance(item["loc"][-1], int)


def _named(place: tuple[int | str, ...], known: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    """Return the name of the setting of an error, and the known settings on its level."""
    first = str(place[0]) if place else ""
    if place and isinstance(place[0], int):  # a positional argument
        first = [*known, str(place[0])][min(place[0], len(known))]
    inner = known.get(first)
    if isinstance(inner, list) and inner and len(place) > 1:
        return f"{first}.{place[1]}", [f"{first}.{name}" for name in inner]
    return first, known
