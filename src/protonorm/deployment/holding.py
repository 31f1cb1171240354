"""One process at a time: a file that a running server or client holds, and beside it who that is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from protonorm.errors import Failed
from protonorm.files import PRIVATE_FILE, parse_json, pretty, replace

PATIENCE = 2.0  # seconds: somebody may look at the lock just now
STEP = 0.1  # seconds between two looks at a process that is to end


class Ended(KeyboardInterrupt):
    """Somebody asked the process to end, as `deploy stop` and services do: that is no failure."""


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold a file while something runs; a second one is refused, and told who is first."""
    lock = FileLock(path, mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        found = holder(path)
        raise BlockingIOError(f"{what} is running already{f', as process {found}' if found else ''}.") from None
    note = _note(path)
    try:
        replace(note, pretty({"process": os.getpid(), "began": process_began(os.getpid())}))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def is_held(path: Path) -> bool:
    """Tell whether somebody holds a file; a process that was killed holds nothing."""
    if not path.exists():
        return False
    lock = FileLock(path, mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def holder(path: Path) -> int | None:
    """Give the number of the process that holds a file; None if nobody does, or if it cannot be told."""
    if not is_held(path):
        return None
    try:
        note = _note(path)
        found = parse_json(note.read_bytes(), note)
        process = int(found["process"])
        return process if is_alive(process, str(found["began"])) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def end_holder(path: Path, what: str, seconds: float = 30.0) -> bool:
    """Ask the process that holds a file to end, and wait until it has; tell whether there was one."""
    process = holder(path)
    if process is None:
        if is_held(path):
            raise Failed(f"{what} is running, but does not say as which process; end it where it was started.")
        return False
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise Failed(f"{what} is process {process} of another user, who must end it.") from None
    end = time.monotonic() + seconds
    while is_held(path):
        if time.monotonic() > end:
            raise Failed(f"{what}, process {process}, was asked to end and has not ended after {seconds:g} seconds.")
        time.sleep(STEP)
    return True


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Let SIGTERM end what runs here in order, as Ctrl-C does; only the main thread hears of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_alive(process: int, began: str) -> bool:
    """Tell whether a process is still there, and the one that was meant."""
    if process <= 1 or process_began(process) != began:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def process_began(process: int) -> str:
    """Say when a process began, in the system's own count; nothing where that cannot be known."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _note(path: Path) -> Path:
    return path.with_suffix(".process")
