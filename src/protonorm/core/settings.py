"""Dataclasses whose fields are settings, and error messages for invalid settings."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import wraps
from itertools import islice
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from protonorm.core.registry import nearest
from protonorm.core.text import shortened
from protonorm.core.types import shown

Made = TypeVar("Made")
COMPLAINTS = 5  # largest number of errors in a message

Hint = Callable[[str], str | None]  # maps the name of an unknown setting to a hint


@dataclass_transform(field_specifiers=(field, Field))
def dataclass(*, frozen: bool, config: ConfigDict) -> Callable[[type[Made]], type[Made]]:
    """Create a dataclass that validates its fields and raises plain ValueErrors instead of pydantic's."""

    def decorate(cls: type[Made]) -> type[Made]:
        result: Any = pydantic_dataclass(cls, frozen=frozen, config=config)
        check = result.__init__

        @wraps(check)
        def init(self: Any, *values: Any, **settings: Any) -> None:
            try:
                check(self, *values, **settings)
            except ValidationError as error:
                raise ValueError(sentences(error, known_fields(type(self)), type(self).__name__)) from None

        result.__init__ = init
        kept: type[Made] = result
        return kept

    return decorate


def known_fields(cls: Any) -> dict[str, list[str]]:
    """Return the settings of a class, each with the names of its nested settings."""
    settings = [setting for setting in fields(cls) if setting.init] if is_dataclass(cls) else []
    return {setting.name: list(known_fields(type(default_of(setting)))) for setting in settings}


def default_of(setting: Any) -> Any:
    """Return the default of a dataclass field."""
    return setting.default_factory() if setting.default_factory is not MISSING else setting.default


def validated(cls: type[Made], settings: Any, owner: str, prefix: str) -> Made:
    """Create an object from its settings; raise ValueError with a sentence for each invalid setting."""
    try:
        return TypeAdapter(cls).validate_python(settings)
    except ValidationError as error:
        raise ValueError(sentences(error, known_fields(cls), owner, prefix)) from None


def unknown(name: str, known: Iterable[str], owner: str, prefix: str = "", hint: Hint | None = None) -> str:
    """Return the message for an unknown setting, with the known settings."""

    def last(name: str) -> str:
        return name.rpartition(".")[2]

    advice = hint(name) if hint else None
    advice = advice or (nearest(shortened(last(name)), known, last) if list(known) else "it has none.")
    return f"{owner} has no setting {shown(prefix + name)}; {advice}"


def sentences(
    error: ValidationError, known: Mapping[str, Any], owner: str, prefix: str = "", hint: Hint | None = None
) -> str:
    """Format validation errors for users, with a line for each setting."""
    items: dict[str, Any] = {}  # for a union type, the first error, or preferably an error of a list member
    for item in error.errors(include_url=False):
        field, _ = _named(item["loc"], known)
        if field not in items or (_is_member(item) and not _is_member(items[field])):
            items[field] = item
        elif items[field]["type"] == "literal_error" and not _is_member(item):  # names, or a number
            other = item["msg"].partition(" should ")[2].removeprefix("be ")
            items[field] = {**items[field], "msg": f"{items[field]['msg']}, or {other}"}
    lines = [_sentence(item, known, owner, prefix, hint) for item in islice(items.values(), COMPLAINTS)]
    more = [f"There are {len(items) - COMPLAINTS} more like these."] if len(items) > COMPLAINTS else []
    return "\n".join([*lines, *more])


def _sentence(item: Any, known: Mapping[str, Any], owner: str, prefix: str, hint: Hint | None) -> str:
    field, names = _named(item["loc"], known)
    match item["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return unknown(field, names, owner, prefix, hint)
        case "missing" | "missing_argument":
            return f"{owner} needs the setting {prefix}{field}."
        case "unexpected_positional_argument":
            return f"{owner} takes {len(known)} settings at most: {', '.join(known)}."
        case "invalid_key":
            return f"Names of settings must be strings, got {shown(item['loc'][0])}."
        case "value_error":
            return str(item["ctx"]["error"])
    if item["type"] == "string_pattern_mismatch":  # the alternatives of the pattern, N for its number
        words = item["ctx"]["pattern"].strip("^$()").replace(r"[1-9]\d{0,8}", "N").split("|")
        return f"{prefix}{shortened(field)} must be {', '.join(words[:-1])} or {words[-1]}, got {shown(item['input'])}."
    message = re.split(", (?:unable|got a|not) | after validation", item["msg"])[0]  # pydantic's words on the value
    must = re.sub(r"^\w+ (?:should|must) ", "", message)
    member = f" as number {item['loc'][-1] + 1} of the list" if _is_member(item) else ""
    listed = item["type"] in ("float_parsing", "int_parsing") and "," in str(item["input"])
    several = "; `protonorm sweep` runs several values" if listed else ""
    return f"{prefix}{shortened(field)} must {must}, got {shown(item['input'])}{member}{several}."


def _is_member(item: Any) -> bool:
    """Return whether an error concerns a member of a list."""
    return len(item["loc"]) > 1 and isinstance(item["loc"][-1], int)


def _named(location: tuple[int | str, ...], known: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    """Return the name of the setting of an error, and the known settings on its level."""
    first = str(location[0]) if location else ""
    if location and isinstance(location[0], int):  # a positional argument
        first = [*known, str(location[0])][min(location[0], len(known))]
    inner = known.get(first)
    if isinstance(inner, list) and inner and len(location) > 1:
        return f"{first}.{location[1]}", [f"{first}.{name}" for name in inner]
    return first, known
