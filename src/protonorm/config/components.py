"""Components with nested settings (method, data set, partition): creation from plain data and description.

Does not import torch.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from protonorm.config.hints import hint_inside
from protonorm.config.kinds import KINDS
from protonorm.config.parsing import with_fields, with_path
from protonorm.core.own_code import fingerprint, load_own, name_missing, own_name
from protonorm.core.own_failures import call_failure, wrong_arguments
from protonorm.core.registry import Entry, find
from protonorm.core.settings import known_fields, sentences, unknown
from protonorm.core.text import shortened
from protonorm.core.types import OLD_RULES, rule_name, shown

METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "dataset": {"load": ()},
    "partition": {"assign": ("labels", "clients")},
}


def build(kind: str, value: Any) -> Any:
    """Create a component from a name or {"name": …, settings}; return an object of the right kind unchanged."""
    (*_, needs, article), settings = KINDS[kind], {"name": value} if isinstance(value, str) else value
    component = _make(kind, settings) if isinstance(settings, Mapping) else settings
    if kind == "partition" and hasattr(component, "load_partition") and not isinstance(component, type):
        from protonorm.data.assignments import Partitioner

        component = Partitioner(component)
    if isinstance(component, type) or not callable(getattr(component, needs, None)):
        raise ValueError(f"{shown(value)} is not {article} {kind}: expected a name, or an object with {needs}().")
    if registered_name(kind, component) is None:
        check_own(kind, component)
    return component


def _make(kind: str, value: Mapping[str, Any]) -> Any:
    table, article = KINDS[kind].table(), KINDS[kind].article
    settings = dict(with_path(value) if kind == "dataset" else with_fields(value) if kind == "algorithm" else value)
    name = settings.pop("name", KINDS[kind].default)
    if not isinstance(name, str):
        raise ValueError(f"{shown(name)} is not the name of {article} {kind}; known: {', '.join(sorted(table))}.")
    if ".py:" in name:
        component = make_own(load_own(name, kind), settings, kind, name)
    else:
        component = _make_ours(table, settings, kind, name)
    for field in fields(component) if is_dataclass(component) else ():
        if not isinstance(path := getattr(component, field.name), Path):
            continue
        if settings.get(field.name) == "":  # would mean the current folder
            raise ValueError(f"{kind}.{field.name} must be the path of a file or folder, got ''.")
        try:
            path.expanduser()
        except RuntimeError:
            setting, home = f"{kind}.{field.name}={shown(str(path))}", shortened(path.parts[0])
            raise ValueError(f"{setting} cannot be found: {home} is not the home of a user.") from None
    return component


def _make_ours(table: Mapping[str, Entry], settings: Mapping[str, Any], kind: str, name: str) -> Any:
    name_missing(name, kind)
    base, colon, rest = name.partition(":")
    if colon and base in table:  # dirichlet:alpha=0.1, a syntax of methods only
        field = shortened(rest.partition("=")[0]) or "FIELD"
        raise ValueError(f"{kind} must be a name, got {shown(name)}; settings stand beside it, as {kind}.{field}=….")
    cls = find(table, shortened(name), kind).load()
    try:
        return TypeAdapter(cls).validate_python(settings)
    except ValidationError as error:
        allowed = known_fields(cls)
        hint = partial(hint_inside, kind=kind, fields=allowed)
        raise ValueError(sentences(error, allowed, f"{kind} {shortened(name)}", f"{kind}.", hint)) from None


def make_own(target: Any, settings: Mapping[str, Any], kind: str, name: str) -> Any:
    """Create an object of a user's class with settings; return an object defined in the file unchanged."""
    label = shortened(name)
    owner = f"{kind} {label}"
    if not isinstance(target, type):
        if settings:
            raise ValueError(f"{label} is a {type(target).__name__}, not a class, so that it takes no settings.")
        return target
    _refuse_unknown(settings, target, owner, kind)
    if lacking := sorted(getattr(target, "__abstractmethods__", ())):
        arguments = methods_of(kind)
        listed = ", ".join(f"{method}({', '.join(arguments.get(method, ()))})" for method in lacking)
        raise ValueError(f"{label} is not {KINDS[kind].article} {kind} yet: it lacks {listed}.")
    try:
        return TypeAdapter(target).validate_python(dict(settings)) if settings else target()
    except ValidationError as error:
        raise ValueError(sentences(error, known_fields(target), owner, f"{kind}.")) from None
    except (PydanticUserError, NameError):  # types that pydantic cannot validate
        raise ValueError(f"{owner} must have fields that are numbers, texts, true or false, or lists.") from None
    except MemoryError:
        raise
    except Exception as error:
        if missing := _needed(target):
            raise ValueError(f"{owner} needs the setting {kind}.{missing[0]}.") from None
        raise ValueError(f"{label} cannot be made: {call_failure(error, target)}") from error


def check_own(kind: str, component: Any) -> None:
    """Raise ValueError for a user's object with wrong method signatures or with state that cannot be recorded."""
    cls = type(component).__name__
    for name, arguments in methods_of(kind).items():
        method = getattr(component, name, None)
        if callable(method) and (problem := wrong_arguments(method, arguments, name)):
            raise ValueError(problem)
    if kind == "algorithm" and hasattr(component, "rules"):
        _check_rules(cls, component.rules, getattr(component, "headline", None))
    if kind == "partition" and not isinstance(getattr(component, "seed", None), int):
        raise ValueError(f"{cls} is not a partition yet: it lacks the setting seed, a whole number.")
    if (
        not is_dataclass(component)
        and not hasattr(component, "description")
        and (state := list(getattr(component, "__dict__", ())))
    ):
        raise ValueError(
            f"{cls} holds {', '.join(map(shortened, state[:5]))}, but is no dataclass, so that runs with other values "
            f"could not be told apart: write it as a @dataclass(frozen=True) whose fields are its settings."
        )


def _check_rules(cls: str, rules: Any, headline: Any) -> None:
    """Raise ValueError if a method's rules are not names, or if its headline is not among them."""
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, str) and rule for rule in rules):
        raise ValueError(f"{cls}.rules must be a tuple of names, such as ('logits',), got {shown(rules)}.")
    if not set(rules) - {"joint"}:
        raise ValueError(f"{cls}.rules must have a rule whose scores the method gives, got {shown(rules)}.")
    if old := sorted(set(rules) & OLD_RULES.keys()):
        present = " and ".join(map(rule_name, old))
        raise ValueError(f"{cls}.rules must have present names, {present}, got the old {' and '.join(old)}.")
    if headline not in rules:
        raise ValueError(f"{cls}.headline must be one of its rules, {', '.join(rules)}, got {shown(headline)}.")


def methods_of(kind: str) -> dict[str, tuple[str, ...]]:
    """Return the methods that an object of a kind may have, with the names of their arguments."""
    if kind != "algorithm":
        return METHODS.get(kind, {})
    from protonorm.core.algorithm import Algorithm

    functions = {name: value for name, value in vars(Algorithm).items() if inspect.isfunction(value) and name[0] != "_"}
    return {name: tuple(inspect.signature(function).parameters)[1:] for name, function in functions.items()}


def _refuse_unknown(settings: Mapping[str, Any], cls: Any, owner: str, kind: str) -> None:
    """Raise ValueError for unknown settings, which dataclasses of the standard library would ignore in validation."""
    allowed, prefix = known_fields(cls), f"{kind}."
    hint = partial(hint_inside, kind=kind, fields=allowed)
    for name, value in settings.items():
        if name not in allowed:
            remark = "" if is_dataclass(cls) else " Settings are the fields of a dataclass, and it is none."
            text = name if isinstance(name, str) else shown(name)
            raise ValueError(unknown(text, allowed, owner, prefix, hint) + remark)
        for inner in value if isinstance(value, Mapping) and allowed[name] else ():
            if inner not in allowed[name]:
                names = [f"{name}.{field}" for field in allowed[name]]
                raise ValueError(unknown(f"{name}.{inner}", names, owner, prefix))


def _needed(cls: type) -> list[str]:
    """List the required arguments of a class."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [item.name for item in parameters if item.kind in kinds and item.default is item.empty]


def describe(kind: str, value: Any) -> dict[str, Any]:
    """Return a component as plain data: name and settings; for a user's class also the fingerprint of its file."""
    if hasattr(value, "description"):
        return dict(value.description())
    settings = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    if name := registered_name(kind, value):
        return {"name": name, **settings}
    cls = type(value)
    with suppress(NameError, TypeError, KeyError, ValueError, PydanticUserError):  # types that pydantic cannot validate
        types = get_type_hints(cls)  # settings as declared: nu=2 and nu=2.0 are equal
        settings = {name: TypeAdapter(types[name]).validate_python(item) for name, item in settings.items()}
    return {"name": own_name(cls), "source": fingerprint(cls), **settings}


def registered_name(kind: str, value: Any) -> str | None:
    """Return the registered name of a component; None for a user's class."""
    target = f"{type(value).__module__}:{type(value).__qualname__}"
    return next((name for name, entry in KINDS[kind].table().items() if entry.target == target), None)
