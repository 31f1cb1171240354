"""Ray actor that runs clients on a node, and the folder of a run on the node.

Arguments and results are only bytes, numbers and text. An actor first reports the versions and data of its node; that
must work with any installed versions, so torch is imported only afterwards.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from protonorm.files import LOCK, PRIVATE_FOLDER, Scratch, open_private, remove_abandoned, replace

if TYPE_CHECKING:
    from protonorm.engines.worker import Player

VERSIONS = ("protonorm", "torch", "numpy")  # that must be equal on all nodes
CHUNK = 2**22  # bytes per read


class Actor:
    """Process of the cluster, which Ray starts, calls sequentially, and ends."""

    def __init__(self) -> None:
        """Limit computation to one thread."""
        os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})  # before torch is imported
        os.umask(0o077)  # files derived from user data are private
        self._node: NodeFolder | None = None
        self._scratch: Scratch | None = None  # for the states of this actor's clients
        self._player: Player | None = None

    def look(self, token: str, content: bytes) -> bytes:
        """Join the run's actors on this node; return the node's versions, memory and available arrays."""
        self.leave()
        self._node, self._scratch = NodeFolder(token), Scratch()
        wanted = [ArrayFacts(*facts) for facts in json.loads(content)]
        arrays = {facts.name: self._node.find(facts) for facts in wanted}
        folders = [self._node.folder.name, self._scratch.folder.name]
        here = {"node": _node_id(), "pid": os.getpid(), "arrays": arrays, "folders": folders}
        return json.dumps(facts_here() | here).encode()

    def write(self, sha256: str, offset: int, whole: int, piece: bytes) -> str:
        """Write a piece of an array for all actors of this node; return an error message, or an empty string."""
        assert self._node, "an actor looks before it is sent something"
        try:
            self._node.write(sha256, offset, whole, piece)
        except OSError as error:
            return str(error)
        return ""

    def open(self, content: bytes) -> bytes:
        """Build the simulation."""
        from protonorm.engines.worker import open_player

        assert self._node, "an actor looks before it plays"
        assert self._scratch
        self._player, told = open_player(content, self._node, self._scratch.folder)
        return told

    def act(self, content: bytes, message: bytes) -> bytes:
        """Train or evaluate a client; `message` is the server's message if the actor lacks it, else empty."""
        return self.player.act(content, message)

    def commit(self, content: bytes) -> None:
        """Remove the states that the committed round replaced."""
        self.player.commit(content)

    def facts(self) -> bytes:
        """Return the machine's versions and resources, and this process's peak memory."""
        return json.dumps(facts_here()).encode()

    def leave(self) -> bool:
        """Remove this actor's files, so that it can join another run."""
        self._player = None
        if self._scratch:
            self._scratch.remove()
        if self._node:
            self._node.leave()
        self._scratch = self._node = None
        return True

    @property
    def player(self) -> Player:
        """Player of the clients."""
        assert self._player is not None, "an actor is opened before it acts"
        return self._player


def facts_here() -> dict[str, Any]:
    """Return host, versions and free resources of this machine, and this process's peak memory."""
    return {
        "versions": versions_here(),
        "host": platform.node(),
        "cores": os.cpu_count() or 1,
        "memory": free_memory(),
        "disk": shutil.disk_usage(tempfile.gettempdir()).free,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def versions_here() -> dict[str, str]:
    """Return the versions that results may depend on, with a hash of this package's source, which may be edited."""
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"source": _source()}


def free_memory() -> int:
    """Return the available memory in bytes; 0 if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _node_id() -> str:
    ray: Any = import_module("ray")
    return str(ray.get_runtime_context().get_node_id())


def _source() -> str:
    """Hash the source files of this package."""
    package = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        if "__pycache__" not in path.parts:
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


class ArrayFacts(NamedTuple):
    """Description of an array: location, layout and checksum."""

    name: str
    type: str  # NumPy dtype
    shape: tuple[int, ...]
    nbytes: int
    sha256: str  # of its bytes
    file: str = ""  # memory-mapped file on the driver; empty if the array is only in memory
    offset: int = 0


class NodeFolder:
    """Folder of a run on a node, with data and code that were sent once for all its actors.

    <temporary folder>/protonorm-<token>/   lock               held by all actors of the node; the last one removes all
                                            <sha256>.array     complete array that was sent
                                            <sha256>.found     location of an equal array on this node's disk
                                            code/<hash>/x.py   file of user code
    """

    def __init__(self, token: str) -> None:
        """Join the actors that use the folder, and create it if needed."""
        self.folder = Path(tempfile.gettempdir()) / f"protonorm-{token}"
        self._lock = self._join()

    def find(self, facts: ArrayFacts) -> str:
        """Return how the node has an array: `found` on its own disk, `sent` before, or an empty string."""
        with FileLock(self.folder / f"{facts.sha256}.lock"):  # one actor searches, the others reuse its result
            if self._sent(facts).exists():
                return "sent"
            if self._found(facts).exists():
                return "found"
            if not facts.file or not _is_same(Path(facts.file), facts):
                return ""
            replace(self._found(facts), json.dumps([facts.file, facts.offset]).encode())
            return "found"

    def write(self, sha256: str, offset: int, whole: int, piece: bytes) -> None:
        """Write a piece of an array; after the last piece, raise an OSError if the checksum differs."""
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

    def open_all(self, told: Sequence[Sequence[Any]]) -> dict[str, NDArray[Any]]:
        """Memory-map arrays, given the fields of their facts."""
        return {facts.name: self.open(facts) for facts in (ArrayFacts(*fields) for fields in told)}

    def open(self, facts: ArrayFacts) -> NDArray[Any]:
        """Memory-map an array that was found or sent."""
        file, offset = self._sent(facts), 0
        if not file.exists():
            file, offset = json.loads(self._found(facts).read_bytes())
        return np.memmap(file, np.dtype(facts.type), "r", offset, tuple(facts.shape))

    def leave(self) -> None:
        """Release the folder; the last actor removes it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # other actors still use it
            pass
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def _sent(self, facts: ArrayFacts) -> Path:
        return self.folder / f"{facts.sha256}.array"

    def _found(self, facts: ArrayFacts) -> Path:
        return self.folder / f"{facts.sha256}.found"

    def _join(self) -> IO[bytes]:
        """Acquire the shared lock; retry if a leaving actor has just removed the folder."""
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
    """Remove folders of this node by name, once their processes have exited; return whether all are removed."""
    place, end = Path(tempfile.gettempdir()), time.monotonic() + seconds
    while any((place / name).exists() for name in folders) and time.monotonic() < end:
        for name in folders:
            remove_abandoned(place, name)
        time.sleep(0.05)
    return not any((place / name).exists() for name in folders)


def hash_array(array: NDArray[Any]) -> str:
    """Hash the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _is_same(path: Path, facts: ArrayFacts) -> bool:
    """Return whether a file contains the array's bytes at the same offset as the driver's file."""
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
