"""A user's own class of a method, a data set or a partition: what does not fit is refused before anything begins."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from protonorm.config.elsewhere import hint_inside
from protonorm.config.kinds import KINDS
from protonorm.core.complaints import known_fields, sentences, unknown
from protonorm.core.own_failures import call_failure, wrong_arguments
from protonorm.core.types import shortened, shown

METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "dataset": {"load": ()},
    "partition": {"assign": ("labels", "clients")},
}


def make_own(found: Any, settings: Mapping[str, Any], kind: str, name: str) -> Any:
    """Make an object of a user's class, with settings; an object that stands in the file is taken as it is."""
    owner, place = f"{kind} {shortened(name)}", shortened(name)
    if not isinstance(found, type):
        if settings:
            raise ValueError(f"{place} is a {type(found).__name__}, not a class, so that it takes no settings.")
        return found
    _refuse_unknown(settings, found, owner, kind)
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        wanted = methods_of(kind)
        listed = ", ".join(f"{one}({', '.join(wanted.get(one, ()))})" for one in lacking)
        raise ValueError(f"{place} is not {KINDS[kind].article} {kind} yet: it lacks {listed}.")
    try:
        return TypeAdapter(found).validate_python(dict(settings)) if settings else found()
    except ValidationError as error:
        raise ValueError(sentences(error, known_fields(found), owner, f"{kind}.")) from None
    except (PydanticUserError, NameError):  # types that mean nothing to us
        raise ValueError(
            f"{owner} has fields of types that settings cannot be; expected numbers, texts, true or false, and lists."
        ) from None
    except MemoryError:
        raise
    except Exception as error:
        if missing := _needed(found):
            raise ValueError(f"{owner} needs the setting {kind}.{missing[0]}.") from None
        raise ValueError(f"{place} cannot be made: {call_failure(error, found)}") from error


def check_own(kind: str, made: Any) -> None:
    """Refuse an object whose methods cannot be called as they will be, or whose settings nobody could tell."""
    for name, arguments in methods_of(kind).items():
        method = getattr(made, name, None)
        if callable(method) and (said := wrong_arguments(method, arguments, name)):
            raise ValueError(said)
    if kind == "algorithm" and hasattr(made, "rules"):
        _check_rules(made)
    if kind == "partition" and not isinstance(getattr(made, "seed", None), int):
        raise ValueError(f"{type(made).__name__} is not a partition yet: it lacks the setting seed, a whole number.")
    if not is_dataclass(made) and not hasattr(made, "description") and (held := list(getattr(made, "__dict__", ()))):
        cls = type(made).__name__
        raise ValueError(
            f"{cls} holds {', '.join(map(shortened, held[:5]))}, but is no dataclass, so that runs with other values "
            f"could not be told apart: write it as a @dataclass(frozen=True) whose fields are its settings."
        )


def _check_rules(made: Any) -> None:
    """Refuse a method whose rules are no names, or whose headline is none of them."""
    cls, rules, headline = type(made).__name__, made.rules, getattr(made, "headline", None)
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, str) and rule for rule in rules):
        raise ValueError(f"{cls}.rules={shown(rules)} is refused: expected a tuple of names, such as ('logits',).")
    if not set(rules) - {"joint"}:
        raise ValueError(f"{cls}.rules={shown(rules)} is refused: expected a rule whose scores the method gives.")
    if headline not in rules:
        raise ValueError(f"{cls}.headline={shown(headline)} is refused: expected one of its rules, {', '.join(rules)}.")


def methods_of(kind: str) -> dict[str, tuple[str, ...]]:
    """List the methods that an object of a kind may have, with the names of their arguments."""
    if kind != "algorithm":
        return METHODS.get(kind, {})
    from protonorm.core.algorithm import Algorithm

    functions = {name: one for name, one in vars(Algorithm).items() if inspect.isfunction(one) and name[0] != "_"}
    return {name: tuple(inspect.signature(one).parameters)[1:] for name, one in functions.items()}


def _refuse_unknown(settings: Mapping[str, Any], cls: Any, owner: str, kind: str) -> None:
    """Refuse settings that a class does not have; dataclasses of the standard library would pass over them."""
    known, prefix = known_fields(cls), f"{kind}."
    hint = partial(hint_inside, kind=kind, known=known)
    for name, value in settings.items():
        if not isinstance(name, str) or name not in known:
            text = name if isinstance(name, str) else shown(name)
            remark = "" if is_dataclass(cls) else " Settings are the fields of a dataclass, and it is none."
            raise ValueError(unknown(text, known, owner, prefix, hint) + remark)
        for inner in value if isinstance(value, Mapping) and known[name] else ():
            if inner not in known[name]:
                names = [f"{name}.{one}" for one in known[name]]
                raise ValueError(unknown(f"{name}.{inner}", names, owner, prefix))


def _needed(cls: type) -> list[str]:
    """Name what must be given to make an object of a class."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.kind in kinds and one.default is one.empty]
