"""Progress reports of long operations; silent unless a listener is set."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[str, int, int], None]  # (description, done, total); total is 0 if unknown

Item = TypeVar("Item")

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Send progress reports to a listener inside the context."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def report(what: str, done: int, whole: int) -> None:
    """Report progress to the current listener, if any."""
    if listener := _listener.get():
        listener(what, done, whole)


def steps(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield items and report progress."""
    for done, item in enumerate(items):
        report(what, done, len(items))
        yield item
    report(what, len(items), len(items))
