"""Exclusive locks of running servers and clients, with the owning process noted beside the lock file."""

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
from protonorm.files import PRIVATE_FILE, pretty, read_json, replace

PATIENCE = 2.0  # seconds: `is_locked` may hold the lock for a moment
STEP = 0.1  # seconds between two checks of a process that is terminating


class Ended(KeyboardInterrupt):
    """Exception for regular termination by a signal, as `deploy stop` and service managers send it; not a failure."""


@contextmanager
def process_lock(path: Path, what: str) -> Iterator[None]:
    """Lock a file within the context; raise BlockingIOError with the owner's process id if it is locked."""
    lock = FileLock(path, mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        owner = lock_owner(path)
        raise BlockingIOError(f"{what} is running already{f', as process {owner}' if owner else ''}.") from None
    note = path.with_suffix(".process")
    try:
        replace(note, pretty({"process": os.getpid(), "began": process_began(os.getpid())}))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def is_locked(path: Path) -> bool:
    """Return whether a file is locked; the operating system releases the locks of killed processes."""
    if not path.exists():
        return False
    lock = FileLock(path, mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def lock_owner(path: Path) -> int | None:
    """Return the id of the process that locks a file; None if the file is not locked or the owner is unknown."""
    if not is_locked(path):
        return None
    try:
        note = read_json(path.with_suffix(".process"))
        process = int(note["process"])
        return process if is_alive(process, str(note["began"])) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def end_owner(path: Path, what: str, seconds: float = 30.0) -> bool:
    """Terminate the process that locks a file and wait for its end; return whether there was such a process."""
    process = lock_owner(path)
    if process is None:
        if is_locked(path):
            raise Failed(f"{what} is running, but does not say as which process; end it where it was started.")
        return False
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise Failed(f"{what} is process {process} of another user, who must end it.") from None
    end = time.monotonic() + seconds
    while is_locked(path):
        if time.monotonic() > end:
            raise Failed(f"{what}, process {process}, was asked to end and has not ended after {seconds:g} seconds.")
        time.sleep(STEP)
    return True


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Raise Ended on SIGTERM within the context, as Ctrl-C would; no effect outside the main thread."""
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
    """Return whether a process is running, and is not a later process with the same id."""
    if process <= 1 or process_began(process) != began:
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def process_began(process: int) -> str:
    """Return the start time of a process in the system's clock ticks; "" if unknown."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
