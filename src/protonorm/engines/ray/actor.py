"""What runs on a node: an actor that plays some clients. What goes in and out is bytes, numbers and text.

Before it plays, an actor says what its node has; that must work whatever versions are there, so nothing else of ours,
nor torch, is imported until then.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protonorm.core.scratch import Scratch
    from protonorm.engines.ray.node_folder import NodeFolder
    from protonorm.engines.ray.player import Player

VERSIONS = ("protonorm", "torch", "numpy")  # that must be the same everywhere


class Actor:
    """A process of the cluster. Ray starts it, sends it calls one after the other, and ends it."""

    def __init__(self) -> None:
        """Prepare to compute with one thread."""
        os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})  # before torch is imported
        os.umask(0o077)  # what is made of a user's data is for its owner only
        self._node: NodeFolder | None = None
        self._scratch: Scratch | None = None  # for the states of this actor's clients
        self._player: Player | None = None

    def look(self, token: str, content: bytes) -> bytes:
        """Join the actors of a run on this node, and say what is here: versions, memory, and which of the arrays."""
        from protonorm.core.scratch import Scratch
        from protonorm.engines.ray.node_folder import ArrayFacts, NodeFolder

        self.leave()
        self._node, self._scratch = NodeFolder(token), Scratch()
        wanted = [ArrayFacts(*facts) for facts in json.loads(content)]
        arrays = {facts.name: self._node.find(facts) for facts in wanted}
        folders = [self._node.folder.name, self._scratch.folder.name]
        here = {"node": _node_id(), "pid": os.getpid(), "arrays": arrays, "folders": folders}
        return json.dumps(facts_here() | here).encode()

    def write(self, sha256: str, offset: int, whole: int, piece: bytes) -> str:
        """Keep a piece of an array for all actors of this node; say what went wrong, if anything did."""
        assert self._node, "an actor looks before it is sent something"
        try:
            self._node.write(sha256, offset, whole, piece)
        except OSError as error:
            return str(error)
        return ""

    def open(self, content: bytes) -> bytes:
        """Build the simulation."""
        from protonorm.engines.ray.player import open_player

        assert self._node, "an actor looks before it plays"
        assert self._scratch
        self._player, told = open_player(content, self._node, self._scratch.folder)
        return told

    def act(self, content: bytes, message: bytes) -> bytes:
        """Let a client act, with the server's message if it is a new one."""
        return self.player.act(content, message)

    def commit(self, content: bytes) -> None:
        """Drop what the committed round has replaced."""
        self.player.commit(content)

    def facts(self) -> bytes:
        """Say what this machine has, and what this process has taken of it."""
        return json.dumps(facts_here()).encode()

    def leave(self) -> bool:
        """Remove what this actor has written; it may join another run then."""
        self._player = None
        if self._scratch:
            self._scratch.remove()
        if self._node:
            self._node.leave()
        self._scratch = self._node = None
        return True

    @property
    def player(self) -> Player:
        """Give who plays the clients."""
        assert self._player is not None, "an actor is opened before it acts"
        return self._player


def facts_here() -> dict[str, Any]:
    """Say what this machine has."""
    return {
        "versions": versions_here(),
        "host": platform.node(),
        "cores": os.cpu_count() or 1,
        "memory": free_memory(),
        "disk": shutil.disk_usage(tempfile.gettempdir()).free,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def versions_here() -> dict[str, str]:
    """Name what the bits of a result may depend on; the text of this package too, for it may be changed in place."""
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"source": _source()}


def free_memory() -> int:
    """Count the bytes of memory that are to be had; 0 if the system does not tell."""
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
    """Condense the files of this package."""
    package = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        if "__pycache__" not in path.parts:
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
