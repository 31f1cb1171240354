"""Keep Ray from printing into our answers and from changing this process, and say in a line what it says in many."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from protonorm.core.own_failures import in_few

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def reason(error: BaseException) -> str:
    """Say in a line what Ray says in many."""
    lines = [COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and "in its creation task" not in line]
    telling = (line for mark in ("No module named", "because") for line in reversed(lines) if mark in line)
    told = next(telling, lines[-1] if lines else "")
    return in_few(told.rstrip(".") or type(error).__name__)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what Ray says while it connects out of the terminal."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def hush() -> None:
    """Keep what Ray says of actors that have ended out of our answers: it prints that, though it was told not to."""
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


@contextmanager
def same_sigterm() -> Iterator[None]:
    """Leave the program's own handling of SIGTERM as it was; Ray replaces it."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGTERM, before)
