"""Error messages for failures in user files: the line, and what was expected there."""

import inspect
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protonorm.core.text import shortened

PREFIX = "protonorm_own_"  # of the module names of user files; used by no library
LONGEST = 200  # characters of a path or an error message that are shown
DEBUG = "PROTONORM_DEBUG"  # environment variable: show full tracebacks instead of messages


def import_failure(error: BaseException, path: Path) -> str:
    """Return the message for a user file that cannot be imported."""
    if isinstance(error, SyntaxError):
        return f"{_at(error.filename or path, error.lineno)}: this is not valid Python: {ended(error.msg or 'broken')}"
    location = _at(path, _line(error, path))
    if isinstance(error, ModuleNotFoundError):
        module = truncate(str(error.name))
        if os.path.isfile(path.parent / f"{module.partition('.')[0]}.py"):
            return (
                f"{location}: it imports {module!r}, which lies beside it, but a file of one's own is imported alone; "
                "put both into one file, or install that one."
            )
        return f"{location}: it imports {module!r}, which is not installed."
    if isinstance(error, ImportError):
        return f"{location}: it imports what is not there: {_first_line(error)}"
    if isinstance(error, SystemExit):
        return f"{location}: it ends the program when it is imported; put that below `if __name__ == '__main__':`."
    return f"{location}: it fails when it is imported: {error_text(error)}"


def call_failure(error: BaseException, obj: Any) -> str:
    """Return the message for a failed call of a user's function or class, with file and line."""
    path = _file(obj)
    line = _line(error, path) if path else None
    return f"{_at(path, line)}: {error_text(error)}" if path and line else error_text(error)


def runtime_failure(error: BaseException) -> str | None:
    """Return the message for a run that failed in a user file; None if it failed elsewhere or debugging is on."""
    if os.environ.get(DEBUG):
        return None
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).startswith(PREFIX):
            location = f"{_at(frame.f_code.co_filename, line)}, in {frame.f_code.co_name}"
            return f"{location}: {error_text(error)} {DEBUG}=1 shows how it came there."
    return None


def wrong_arguments(obj: Any, expected: Sequence[str], name: str = "") -> str | None:
    """Return the message for a function that cannot be called with the expected arguments; None if it can."""
    signature = None
    try:
        signature = inspect.signature(obj)
        signature.bind(*expected)
    except (TypeError, ValueError):
        if signature:  # some C functions have none
            name = name or getattr(obj, "__name__", "it")
            has = truncate(f"{name}({', '.join(signature.parameters)})")
            return f"{_defined(obj)}{has} has other arguments than expected: {name}({', '.join(expected)})."
    return None


def error_text(error: BaseException) -> str:
    """Format an error: its type, unless it is a ValueError, and the first line of its message."""
    line = _first_line(error)
    return line if isinstance(error, ValueError) else f"{type(error).__name__}: {line}"


def truncate(text: str) -> str:
    """Format a text, such as a path, as a single line of limited length."""
    return shortened(text, LONGEST)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return ended(lines[0]) if lines else "it says nothing more."


def ended(text: str) -> str:
    """Format a text as the end of a sentence, with a full stop."""
    line = truncate(text)
    return line if line.endswith((".", "…", "!", "?")) else f"{line}."


def _at(path: Path | str, line: int | None) -> str:
    return f"{truncate(str(path))}, line {line}" if line else truncate(str(path))


def _line(error: BaseException, path: Path) -> int | None:
    """Find the last line of a file in the traceback of an error."""
    names = (str(path), str(path.resolve()))
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename in names]
    return lines[-1] if lines else None


def _file(obj: Any) -> Path | None:
    try:
        return Path(inspect.getfile(inspect.unwrap(obj)))
    except (TypeError, OSError):
        return None


def _defined(obj: Any) -> str:
    """Return file and line of a function or class, followed by a colon; empty if it has no file."""
    path, code = _file(obj), getattr(inspect.unwrap(obj), "__code__", None)
    try:
        line = code.co_firstlineno if code else inspect.getsourcelines(obj)[1]
    except (TypeError, OSError):
        line = None
    return f"{_at(path, line)}: " if path else ""
