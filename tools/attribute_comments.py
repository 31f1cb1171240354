"""For the API reference: what is said of an attribute in a comment beside it, or in its Field, is its description."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

import griffe

FIELDS = ("Field", "field")  # of pydantic, and of dataclasses
NOISE = {"class-attribute", "instance-attribute"}  # griffe's words, which tell a reader nothing


class AttributeComments(griffe.Extension):
    """Gives attributes without a docstring the comment that stands behind them, or a Field's description."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, agent: Any, **_: Any) -> None:
        """Describe an attribute once it is found in a source."""
        attr.labels -= NOISE
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            return
        called = _called(node.value)
        text = ""
        if called in FIELDS:
            text, value = _field(node.value)
            attr.value = None if value is None else griffe.safe_get_expression(value, parent=attr.parent)
        if attr.docstring is None and (told := text or _comment(attr)):
            attr.docstring = griffe.Docstring(told, lineno=attr.lineno, endlineno=attr.endlineno, parent=attr)


def _called(value: ast.expr | None) -> str:
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""


def _field(call: Any) -> tuple[str, ast.expr | None]:
    """Find what a field of pydantic or of a dataclass says of itself, and its default."""
    given = {one.arg: one.value for one in call.keywords}
    told = given.get("description")
    default = call.args[0] if call.args else given.get("default")
    return told.value if isinstance(told, ast.Constant) else "", default


def _comment(attr: griffe.Attribute) -> str:
    """Find the comment at the end of an attribute's last line."""
    if attr.endlineno is None:
        return ""
    line = attr.module.lines_collection[attr.module.filepath][attr.endlineno - 1].strip()
    try:
        parts = list(tokenize.generate_tokens(io.StringIO(line).readline))
    except tokenize.TokenError:  # the end of an expression that began on a line before
        return ""
    return next((one.string.lstrip("# ") for one in parts if one.type == tokenize.COMMENT), "")
