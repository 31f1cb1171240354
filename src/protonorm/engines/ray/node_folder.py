"""A run's folder on one node: data and code that were sent there once, for all actors of the node.

<temporary folder>/protonorm-<token>/   lock               held by every actor of the node; the last one removes all
                                        <sha256>.array     an array that was sent, whole
                                        <sha256>.found     where on this node's disk the same bytes were found
                                        code/<hash>/x.py   a user's own file

Nothing here needs torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from protonorm.core.scratch import LOCK, remove_abandoned
from protonorm.files import PRIVATE_FOLDER, open_private, replace

CHUNK = 2**22  # bytes that are read at once


class ArrayFacts(NamedTuple):
    """What is told of an array: enough to find it, and to know it for the same."""

    name: str
    type: str  # of numpy
    shape: tuple[int, ...]
    nbytes: int
    sha256: str  # of its bytes
    file: str = ""  # that it is mapped from where the run was started; nothing if it is in memory alone
    offset: int = 0


class NodeFolder:
    """The folder, as one actor sees it."""

    def __init__(self, token: str) -> None:
        """Join the actors that use the folder; the first one makes it."""
        self.folder = Path(tempfile.gettempdir()) / f"protonorm-{token}"
        self._lock = self._join()

    def find(self, facts: ArrayFacts) -> str:
        """Say how the node has an array: `found` on its own disk, `sent` before, or not at all."""
        with FileLock(self.folder / f"{facts.sha256}.lock"):  # one actor looks; the others wait and know
            if self._sent(facts).exists():
                return "sent"
            if self._found(facts).exists():
                return "found"
            if not facts.file or not _is_same(Path(facts.file), facts):
                return ""
            replace(self._found(facts), json.dumps([facts.file, facts.offset]).encode())
            return "found"

    def write(self, sha256: str, offset: int, whole: int, piece: bytes) -> None:
        """Write a piece of an array; behind the last one, compare all of it with its checksum."""
        part = self.folder / f"{sha256}.part"
        with open_private(part, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(piece)
        if offset + len(piece) < whole:
            return
        with part.open("rb") as file:
            if _hash(file, whole) != sha256:
                raise OSError(f"an array of {whole} bytes did not arrive whole in {self.folder}")
        os.replace(part, self.folder / f"{sha256}.array")

    def open(self, facts: ArrayFacts) -> NDArray[Any]:
        """Map an array that was found or sent."""
        place: tuple[str, int] = str(self._sent(facts)), 0
        if not self._sent(facts).exists():
            file, offset = json.loads(self._found(facts).read_bytes())
            place = file, offset
        return np.memmap(place[0], np.dtype(facts.type), "r", place[1], tuple(facts.shape))

    def leave(self) -> None:
        """Let go of the folder; whoever is the last removes it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # others are still there
            pass
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def _sent(self, facts: ArrayFacts) -> Path:
        return self.folder / f"{facts.sha256}.array"

    def _found(self, facts: ArrayFacts) -> Path:
        return self.folder / f"{facts.sha256}.found"

    def _join(self) -> IO[bytes]:
        """Hold the lock together with the other actors; one that has just left may have taken the folder with it."""
        while True:
            try:
                self.folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
                _refuse_foreign(self.folder)
                lock = open_private(self.folder / LOCK, "ab")
            except FileNotFoundError:
                continue
            fcntl.flock(lock, fcntl.LOCK_SH)
            try:
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(self.folder / LOCK)):
                    return lock
            except FileNotFoundError:
                pass
            lock.close()


def sweep(folders: list[str], seconds: float) -> bool:
    """Remove folders of this node by their names, once the processes that hold them have gone."""
    place, end = Path(tempfile.gettempdir()), time.monotonic() + seconds
    while any((place / name).exists() for name in folders) and time.monotonic() < end:
        for name in folders:
            remove_abandoned(place, name)
        time.sleep(0.05)
    return not any((place / name).exists() for name in folders)


def hash_array(array: NDArray[Any]) -> str:
    """Condense the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _is_same(path: Path, facts: ArrayFacts) -> bool:
    """Tell whether a file has the bytes of an array where the driver's file has them."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < facts.offset + facts.nbytes:
                return False
            file.seek(facts.offset)
            return _hash(file, facts.nbytes) == facts.sha256
    except OSError:
        return False


def _hash(file: IO[bytes], size: int) -> str:
    digest = hashlib.sha256()
    while size and (chunk := file.read(min(CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def _refuse_foreign(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is there, but is not a folder for its owner only")
