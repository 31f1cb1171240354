"""Default values of settings, read from the text of their class: importing it would need torch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

UNKNOWN = object()  # equal to no value: the default of a setting that has none, or a computed one


@cache
def usual(target: str) -> Mapping[str, Any]:
    """Give the settings of the class at "package.module:Name" with their defaults."""
    module, _, name = target.partition(":")
    spec = find_spec(module)
    source = getattr(spec.loader, "get_source", lambda _: None)(module) if spec else None
    tree = ast.parse(source or "")
    return _fields({node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}, name)


def _fields(classes: Mapping[str, ast.ClassDef], name: str) -> dict[str, Any]:
    if name not in classes:
        return {}
    found: dict[str, Any] = {}
    for base in classes[name].bases:
        found |= _fields(classes, base.id) if isinstance(base, ast.Name) else {}
    for line in classes[name].body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not _of_class(line.annotation):
            found[line.target.id] = _literal(line.value)
    return found


def _of_class(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).startswith("ClassVar")


def _literal(value: ast.expr | None) -> Any:
    """Read a default: a literal, or the first argument or `default` of a Field."""
    if isinstance(value, ast.Call):
        named = [word.value for word in value.keywords if word.arg == "default"]
        value = next(iter([*value.args, *named]), None)
    try:
        return UNKNOWN if value is None else ast.literal_eval(value)
    except ValueError:
        return UNKNOWN
