"""Write the API reference: signatures and docstrings of all public names, as Python, between marks of docs/api/*.md.

`python -m tools.api_pages` renews the pages; a test compares them with the sources. A name stands between
`<!-- NAME -->` and `<!-- end -->`: its signature and docstring and, of a class, its public fields and methods, as they
are in the source.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import protonorm

PAGES = sorted((Path(__file__).resolve().parent.parent / "docs" / "api").glob("*.md"))
PLACE = re.compile(r"<!-- (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
MEMBERS = FUNCTIONS | ast.AnnAssign


def written(page: str) -> str:
    """Return a page with the reference of every marked name up to date."""
    return PLACE.sub(lambda match: f"<!-- {match['name']} -->\n{entry(match['name'])}<!-- end -->", page)


def entry(name: str) -> str:
    """Render a public name: a heading, and its signature and docstring as Python."""
    thing = getattr(protonorm, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        lines = inspect.getsource(thing).splitlines()
        (node,) = ast.parse("\n".join(lines)).body
        text = _class(node, lines) if isinstance(node, ast.ClassDef) else _function(node, lines)
    else:
        text = [f"{name} = {thing}".replace("collections.abc.", "").replace("torch.", "")]
    return "\n".join([f"## {name}", "", "<!-- from: the source -->", "````py", *text, "````", ""])


def _class(node: ast.ClassDef, lines: list[str]) -> list[str]:
    shown = [*lines[node.lineno - 1 : node.body[0].lineno - 1], *_docstring(node, lines), ""]
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and _is_public(member.target):
            shown += [*_comments_above(member, lines), *lines[member.lineno - 1 : member.end_lineno]]
        elif isinstance(member, FUNCTIONS) and not member.name.startswith("_") and ast.get_docstring(member):
            shown += [*([""] if shown[-1] else []), *_function(member, lines)]
    return textwrap.dedent("\n".join(shown)).strip().splitlines()


def _function(node: ast.stmt, lines: list[str]) -> list[str]:
    assert isinstance(node, FUNCTIONS)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return [*lines[first - 1 : node.body[0].lineno - 1], *_docstring(node, lines)]


def _docstring(node: ast.ClassDef | FUNCTIONS, lines: list[str]) -> list[str]:
    if ast.get_docstring(node) is None:
        return []
    return lines[node.body[0].lineno - 1 : node.body[0].end_lineno]


def _comments_above(node: ast.stmt, lines: list[str]) -> list[str]:
    """Return the comment lines directly above a field, and the blank line before them."""
    first = node.lineno - 1
    while lines[first - 1].strip().startswith("#"):
        first -= 1
    return lines[first : node.lineno - 1]


def _is_public(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and not target.id.startswith("_")


def main() -> None:
    """Renew all pages."""
    for path in PAGES:
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
