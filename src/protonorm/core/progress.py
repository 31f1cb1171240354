"""Tell whoever listens how far long work is. A program that uses the package hears nothing unless it listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[str, int, int], None]  # what is being done, how far it is, how far it goes (0 if nobody knows)

Item = TypeVar("Item")

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Let a function hear of long work while this lasts."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def report(what: str, done: int, whole: int) -> None:
    """Tell how far work is."""
    if listener := _listener.get():
        listener(what, done, whole)


def steps(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Go through items, and tell how far it is."""
    for done, item in enumerate(items):
        report(what, done, len(items))
        yield item
    report(what, len(items), len(items))
