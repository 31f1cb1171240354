"""Things with settings of their own — a method, a data set, a partition — from plain data and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from protonorm.config.elsewhere import hint_inside
from protonorm.config.kinds import KINDS
from protonorm.config.own_classes import check_own, make_own
from protonorm.core.complaints import default_of, known_fields, sentences
from protonorm.core.own_code import load_own, name_missing
from protonorm.core.own_text import fingerprint, own_name
from protonorm.core.registry import Entry, find
from protonorm.core.types import shortened, shown

__all__ = ["build", "changed_fields", "describe", "known_fields", "registered_name", "sentences"]


def build(kind: str, value: Any) -> Any:
    """Make what a name, or {"name": …, settings}, stands for; an object of the right kind is taken as it is."""
    made = _make(kind, value)
    needs = KINDS[kind].needs
    if isinstance(made, type) or not callable(getattr(made, needs, None)):
        raise ValueError(
            f"{shown(value)} is not {KINDS[kind].article} {kind}: expected a name, or an object with {needs}()."
        )
    if registered_name(kind, made) is None:
        check_own(kind, made)
    return made


def _make(kind: str, value: Any) -> Any:
    table = KINDS[kind].table()
    value = _with_path(kind, {"name": value} if isinstance(value, str) else value)
    if not isinstance(value, Mapping):
        return value
    settings = dict(value)
    name = settings.pop("name", KINDS[kind].default)
    if not isinstance(name, str):
        raise ValueError(
            f"{shown(name)} is not the name of {KINDS[kind].article} {kind}; known: {', '.join(sorted(table))}."
        )
    if ".py:" in name:
        made = make_own(load_own(name, kind), settings, kind, name)
    else:
        made = _make_ours(table, settings, kind, name)
    _check_paths(made, settings, kind)
    return made


def _make_ours(table: Mapping[str, Entry], settings: Mapping[str, Any], kind: str, name: str) -> Any:
    name_missing(name, kind)
    _refuse_settings_in_name(table, name, kind)
    cls = find(table, shortened(name), kind).load()
    try:
        return TypeAdapter(cls).validate_python(settings)
    except ValidationError as error:
        known = known_fields(cls)
        hint = partial(hint_inside, kind=kind, known=known)
        raise ValueError(sentences(error, known, f"{kind} {shortened(name)}", f"{kind}.", hint)) from None


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


def _with_path(kind: str, value: Any) -> Any:
    """Read folder:PATH as the component `folder` with the setting path=PATH."""
    name = value.get("name") if isinstance(value, Mapping) else None
    if kind != "dataset" or not isinstance(name, str) or ".py:" in name:
        return value
    base, colon, path = name.partition(":")
    if not colon or base not in KINDS[kind].table():
        return value
    if value.get("path", path) != path:
        raise ValueError(f"dataset.path={shown(value['path'])} is refused: {shown(name)} has another path already.")
    return {**value, "name": base, "path": path}


def _refuse_settings_in_name(table: Mapping[str, Entry], name: str, kind: str) -> None:
    """Refuse protonorm:gamma=50, which only commands that take several methods read."""
    base, colon, rest = name.partition(":")
    if colon and base in table:
        field = shortened(rest.partition("=")[0]) or "FIELD"
        raise ValueError(f"{kind}={shown(name)} is refused: settings stand beside it, as {kind}.{field}=….")


def describe(kind: str, value: Any) -> dict[str, Any]:
    """Write a component as plain data: its name and settings; a user's own by where it is and what it says."""
    if hasattr(value, "description"):
        return dict(value.description())
    settings = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    name = registered_name(kind, value)
    if name:
        return {"name": name, **settings}
    cls = type(value)
    return {"name": own_name(cls), "source": fingerprint(cls), **_as_declared(cls, settings)}


def _as_declared(cls: type, settings: dict[str, Any]) -> dict[str, Any]:
    """Write the settings of a user's own class by the types that it declares: nu=2 and nu=2.0 are one number."""
    try:
        types = get_type_hints(cls)
        return {name: TypeAdapter(types[name]).validate_python(value) for name, value in settings.items()}
    except (NameError, TypeError, KeyError, ValueError, PydanticUserError):  # some types mean nothing to us
        return settings


def registered_name(kind: str, value: Any) -> str | None:
    """Find the name of a component in its table; None for one of the user's own."""
    place = f"{type(value).__module__}:{type(value).__qualname__}"
    return next((name for name, entry in KINDS[kind].table().items() if entry.target == place), None)


def _are_equal(one: Any, other: Any) -> bool:
    """Compare settings, those of a user's own class too: arrays, or what cannot be compared and so differs."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    try:
        return bool(one == other) or bool(one != one and other != other)  # NaN is no other value than NaN
    except (ValueError, TypeError, RuntimeError):
        return False


def changed_fields(value: Any, prefix: str, usual: Any = None) -> dict[str, Any]:
    """List the settings of a component that differ from the usual ones, named as on the command line.

    The usual ones are those of `usual`, or the defaults of the component's class.
    """
    found: dict[str, Any] = {}
    for field in fields(value) if is_dataclass(value) else ():
        given = getattr(value, field.name)
        default = getattr(usual, field.name) if usual is not None else default_of(field)
        if _are_equal(given, default) or not field.compare or (field.name == "path" and hasattr(value, "name")):
            continue  # the name of files holds their path
        name = f"{prefix}.{field.name}"
        found |= changed_fields(given, name) if is_dataclass(given) else {name: given}
    return found
