"""What a user's own class or function is called in a record, and how one text of it is told from another.

Both are the same however it was given: as file.py:Name on the command line, or from Python, imported or not.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import site
import symtable
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import FunctionType
from typing import Any

TEXT = "__own_text__"  # in a module: its file as it was imported; once that is edited, it is imported anew
PLAIN = (bool, int, float, str, type(None))


def own_name(thing: Any) -> str:
    """Name a class or function as one gives it on the command line, file.py:Name; one of a library by its module."""
    path = _file(thing)
    if path is None:
        return f"{thing.__module__}:{thing.__qualname__}"
    if inside := _in_library(path):
        return f"{inside}:{thing.__qualname__}"
    return f"{path.name}:{thing.__qualname__}"


def is_installed(thing: Any) -> bool:
    """Tell whether a class or function is one of ours or of a library; else it is in a user's own file."""
    path = _file(thing)
    return thing.__module__.partition(".")[0] == "protonorm" or path is None or bool(_in_library(path))


def imported_text(thing: Any) -> bytes | None:
    """Give a user's file as it was when a class or function was imported; None if nobody noted it."""
    held = [one.__globals__ for one in _functions(inspect.unwrap(thing))]  # the module's name may be a newer one's
    held.append(vars(sys.modules.get(thing.__module__, inspect)))
    return next((names[TEXT] for names in held if TEXT in names), None)


def refuse_edited(thing: Any) -> None:
    """Refuse a class or function if its file says another thing of it now than when it was imported."""
    path, held = _file(thing), imported_text(thing)
    if path and held is not None and _text_of(thing, path.read_bytes()) != _text_of(thing, held):
        raise edited(path)


def edited(path: Path) -> ValueError:
    """Say that a user's file was changed since it was imported."""
    return ValueError(
        f"{path.name} was changed since it was imported here, so that other processes would execute another text: "
        "give the command again, or load it again."
    )


def fingerprint(thing: Any) -> str:
    """Tell one text of a class or function from another: of itself, and of all that it uses of its file.

    A file that was edited since counts as it was imported, for that is what is executed.
    """
    texts = _texts(thing, set())
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16] if texts else "unknown"


def _texts(thing: Any, seen: set[int]) -> list[str]:
    """List the text of a class or function, and what it keeps of a function in which it was made."""
    path = _file(thing)
    text = _text_in_file(thing, path) if path else _text_in_notebook(thing)
    if text is None or id(thing) in seen:
        return []
    found = [text]
    for cell in getattr(inspect.unwrap(thing), "__closure__", None) or ():
        with suppress(ValueError):  # it is still empty
            held = cell.cell_contents
            found += [repr(held)] if isinstance(held, PLAIN) else []
            found += _texts(held, seen | {id(thing)}) if isinstance(held, FunctionType | type) else []
    return found


def _file(thing: Any) -> Path | None:
    """Find the file that a class or function stands in; None in a notebook, or at a prompt."""
    thing = inspect.unwrap(thing)
    names = [one.__code__.co_filename for one in _functions(thing)]
    with suppress(OSError, TypeError):
        names.append(inspect.getfile(thing))  # of a class, that of its module: two files of one name could be mixed up
    paths = (Path(name) for name in names if name.endswith(".py"))
    return next((path.resolve() for path in paths if path.is_file()), None)


def _functions(thing: Any) -> list[FunctionType]:
    """List a function, or the functions that a class defines itself."""
    if isinstance(thing, FunctionType):
        return [thing]
    held = [one for one in vars(thing).values() if isinstance(one, FunctionType)] if isinstance(thing, type) else []
    return [one for one in held if one.__globals__.get("__name__") == thing.__module__]  # a decorator may add others


def _in_library(path: Path) -> str:
    """Name a module by its place among the installed libraries; nothing if it is not there."""
    places = {sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")} | {site.getusersitepackages()}
    for place in sorted((Path(one).resolve() for one in places), key=lambda one: -len(one.parts)):
        if path.is_relative_to(place):
            parts = path.relative_to(place).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return ""


def _text_in_file(thing: Any, path: Path) -> str | None:
    """Collect the statements of a file that a class or function needs, as it was imported if that is known."""
    held = imported_text(thing)
    try:
        text = _text_of(thing, path.read_bytes() if held is None else held)
    except OSError:
        return None
    return _text_in_notebook(thing) if text == "" else text


def _text_of(thing: Any, content: bytes) -> str | None:
    """Collect the statements that a class or function needs: its own, and those that name what it uses."""
    name = inspect.unwrap(thing).__qualname__.partition(".")[0]
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
        return "\n".join(_needed(TextIOWrapper(BytesIO(content), encoding).read(), name))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _needed(text: str, name: str) -> list[str]:
    """List the statements of a file, in their order, that bind a name or, from there on, any name that these use."""
    lines, statements = text.split("\n"), ast.parse(text).body
    texts = ["\n".join(lines[_first_line(one) - 1 : one.end_lineno]) for one in statements]
    binding: dict[str, list[int]] = {}
    for place, statement in enumerate(statements):
        for bound in _bound(statement):
            binding.setdefault(bound, []).append(place)
    waiting, seen = [name], set[str]()
    found = set(binding.get("*", []) if name in binding else [])
    while waiting:
        wanted = waiting.pop()
        seen.add(wanted)
        for place in binding.get(wanted, []):
            found.add(place)
            waiting += _used(texts[place]) - seen
    return [texts[place] for place in sorted(found)]


def _used(statement: str) -> set[str]:
    """Name what a statement uses of its file; names that mean something inside a function alone are none of it."""
    tables = [symtable.symtable(statement, "own", "exec")]
    for table in tables:  # the list grows meanwhile
        tables += table.get_children()
    return {
        one.get_name()
        for table in tables
        for one in table.get_symbols()
        if one.is_referenced() and (table is tables[0] or one.is_global())
    }


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Go through the names that a statement gives a meaning to; * for one that may do so with any."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from (one.id for one in ast.walk(node.value) if isinstance(one, ast.Name))


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _text_in_notebook(thing: Any) -> str | None:
    """Read the text of a class or function alone; of a class in a notebook, that of its functions."""
    for things in ([thing], _functions(thing)):
        with suppress(OSError, TypeError):
            return "\n".join(map(inspect.getsource, things)) or None
    return None
