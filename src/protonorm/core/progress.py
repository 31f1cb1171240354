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
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(description: str, done: int, total: int) -> None:
    """Report progress to the current listener, if any."""
    if listener := _listener.get():
        listener(description, done, total)


def steps(items: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield items and report progress."""
    for done, item in enumerate(items):
        report(description, done, len(items))
        yield item
    report(description, len(items), len(items))
