"""Ray actor that runs clients on a node, and the folder of a run on the node.

Arguments and results are only bytes, numbers and text. An actor first reports the versions and data of its node; that
must work with any installed versions, so torch is imported only afterwards.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import starmap
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from protonorm.files import LOCK, PRIVATE_FOLDER, Scratch, open_private, remove_abandoned, replace

if TYPE_CHECKING:
    from protonorm.engines.worker import Player

VERSIONS = ("protonorm", "torch", "numpy")  # that must be equal on all nodes


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
        ray: Any = import_module("ray")
        node = {
            "node": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
            "arrays": {facts.name: self._node.find(facts) for facts in starmap(ArrayFacts, json.loads(content))},
            "folders": [self._node.folder.name, self._scratch.folder.name],
        }
        return json.dumps(facts_here() | node).encode()

    def write(self, sha256: str, offset: int, total: int, piece: bytes) -> str:
        """Write a piece of an array for all actors of this node; return an error message, or an empty string."""
        assert self._node, "an actor looks before it is sent something"
        try:
            self._node.write(sha256, offset, total, piece)
        except OSError as error:
            return str(error)
        return ""

    def open(self, content: bytes) -> bytes:
        """Build the simulation."""
        from protonorm.engines.worker import open_player

        assert self._node, "an actor looks before it plays"
        assert self._scratch
        self._player, answer = open_player(content, self._node, self._scratch.folder)
        return answer

    def act(self, content: bytes, message: bytes) -> bytes:
        """Train or evaluate a client; `message` is the server's message if the actor lacks it, else empty."""
        assert self._player, "an actor is opened before it acts"
        return self._player.act(content, message)

    def commit(self, content: bytes) -> None:
        """Remove the states that the committed round replaced."""
        assert self._player, "an actor is opened before it acts"
        self._player.commit(content)

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


def facts_here() -> dict[str, Any]:
    """Return host, versions and free resources of this machine, and this process's peak memory."""
    line = None
    with suppress(OSError):
        line = re.search(r"^MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "versions": versions_here(),
        "host": platform.node(),
        "cores": os.cpu_count() or 1,
        "memory": int(line[1]) * 1024 if line else 0,  # bytes that are available; 0 if unknown
        "disk": shutil.disk_usage(tempfile.gettempdir()).free,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def versions_here() -> dict[str, str]:
    """Return the versions that results may depend on, with a hash of this package's source, which may be edited."""
    versions = {"python": platform.python_version()} | dict.fromkeys(VERSIONS, "not installed")
    for name in VERSIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    package, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return versions | {"source": digest.hexdigest()[:12]}


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
            with suppress(OSError, ValueError):
                if facts.file and hash_part(facts.file, facts.offset, facts.nbytes) == facts.sha256:
                    replace(self._found(facts), json.dumps([facts.file, facts.offset]).encode())
                    return "found"
            return ""

    def write(self, sha256: str, offset: int, total: int, piece: bytes) -> None:
        """Write a piece of an array; after the last piece, raise an OSError if the checksum differs."""
        part = self.folder / f"{sha256}.part"
        with open_private(part, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(piece)
        if offset + len(piece) < total:
            return
        with part.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise OSError(f"an array of {total} bytes did not arrive whole in {self.folder}")
        os.replace(part, self.folder / f"{sha256}.array")

    def open_all(self, arrays: Sequence[Sequence[Any]]) -> dict[str, NDArray[Any]]:
        """Memory-map arrays, given the fields of their facts."""
        return {facts.name: self.open(facts) for facts in starmap(ArrayFacts, arrays)}

    def open(self, facts: ArrayFacts) -> NDArray[Any]:
        """Memory-map an array that was found or sent."""
        file, offset = self._sent(facts), 0
        if not file.exists():
            file, offset = json.loads(self._found(facts).read_bytes())
        return np.memmap(file, np.dtype(facts.type), "r", offset, tuple(facts.shape))

    def leave(self) -> None:
        """Release the folder; the last actor removes it."""
        with suppress(OSError):  # other actors still use it
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def _sent(self, facts: ArrayFacts) -> Path:
        return self.folder / f"{facts.sha256}.array"

    def _found(self, facts: ArrayFacts) -> Path:
        return self.folder / f"{facts.sha256}.found"

    def _join(self) -> IO[bytes]:
        """Acquire the shared lock; retry if a leaving actor has just removed the folder."""
        while True:
            with suppress(FileNotFoundError):
                self.folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
                status = self.folder.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
                    raise PermissionError(f"{self.folder} is there, but is not a folder for its owner only")
                with ExitStack() as stack:
                    lock = stack.enter_context(open_private(self.folder / LOCK, "ab"))
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    if os.path.samestat(os.fstat(lock.fileno()), os.stat(self.folder / LOCK)):
                        stack.pop_all()  # stays open
                        return lock


def sweep(folders: list[str], seconds: float) -> bool:
    """Remove folders of this node by name, once their processes have exited; return whether all are removed."""
    parent, end = Path(tempfile.gettempdir()), time.monotonic() + seconds
    while any((parent / name).exists() for name in folders) and time.monotonic() < end:
        for name in folders:
            remove_abandoned(parent, name)
        time.sleep(0.05)
    return not any((parent / name).exists() for name in folders)


def hash_array(array: NDArray[Any]) -> str:
    """Hash the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def hash_part(file: str, offset: int, nbytes: int) -> str:
    """Hash a part of a file; raise OSError or ValueError if the file is missing or too short."""
    return hash_array(np.memmap(file, np.uint8, "r", offset, (nbytes,)))
