"""Folders for temporary files. A process that is killed leaves its folder behind; the next one to start removes it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

LOCK = "lock"  # held as long as the folder's process lives
ENDING = r"[a-z0-9_]{8}"  # what stands behind the prefix in the name of a temporary folder
TRIES = 10  # to make a folder that nobody else looks at
YOUNG = 60.0  # seconds in which a folder may still be without its lock


class Scratch:
    """A folder that only its owner can read, and that is removed when it is no longer needed."""

    def __init__(self, parent: Path | None = None, prefix: str = "protonorm-") -> None:
        """Make the folder, after those that killed processes left in the same place are removed."""
        place = parent or Path(tempfile.gettempdir())
        remove_abandoned(place, prefix)
        for tries_left in reversed(range(TRIES)):
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))  # with mode 0700
            self._lock = FileLock(self.folder / LOCK)
            try:
                self._lock.acquire(timeout=0)
                return
            except Timeout:  # somebody who removes what is abandoned had it for a moment, and may remove the folder
                if not tries_left:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def release(self) -> None:
        """Let go of the folder, which has been moved elsewhere or will be."""
        self._lock.release()
        (self.folder / LOCK).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        _empty(self.folder)
        self._lock.release()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_abandoned(place: Path, prefix: str) -> None:
    """Remove the folders of processes that have ended; those of other users, other names and living processes stay.

    A prefix ends with a hyphen. A folder without a lock may be anybody's, and is removed only if it is empty; whoever
    has looked into a folder gives its whole name instead.
    """
    whole = not prefix.endswith("-")
    for folder in place.glob("*"):
        if not re.fullmatch(re.escape(prefix) + ("" if whole else ENDING), folder.name):
            continue
        with suppress(OSError):
            found = folder.lstat()
            own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
            if own and stat.S_ISDIR(found.st_mode) and _is_abandoned(folder, found):
                if whole or (folder / LOCK).exists():
                    _empty(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove all that is in a folder but its lock, which goes last: while something is left, the folder is ours."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)


def _is_abandoned(folder: Path, found: os.stat_result) -> bool:
    if not (folder / LOCK).exists():
        return time.time() - found.st_mtime > YOUNG
    try:
        FileLock(folder / LOCK).acquire(timeout=0).lock.release()
    except Timeout:
        return False
    return True
