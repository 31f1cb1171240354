"""Connection to the Ray cluster of this process: the one at RAY_ADDRESS, or a local one that it starts.

Ray is imported only when this engine is used. It is prevented from printing to the terminal and from changing signal
handlers of this process.
"""

import atexit
import logging
import math
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from protonorm.core.own_failures import truncate
from protonorm.core.randomness import cores
from protonorm.engines.handover import exit_text
from protonorm.errors import Failed
from protonorm.files import Scratch

ADDRESS = "RAY_ADDRESS"  # environment variable; empty or `local` for a local cluster
SOCKETS = 107 - len("/protonorm-12345678/r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
TRIES = 3  # attempts to start a cluster
STORE = 2**30  # bytes of a local cluster's object store, for replies and pieces of data in transit
RESUME = "Finished rounds are kept; the same command goes on from there."
REACH = 10.0  # seconds for a cluster to accept a connection; Ray itself would retry for minutes
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Node(NamedTuple):
    """Alive node of the cluster."""

    id: str
    host: str
    cpus: float
    gpus: float

    def __str__(self) -> str:
        """Return the display name; the id distinguishes nodes on the same machine."""
        return node_name(self.host, self.id)


def node_name(host: str, id: str) -> str:
    """Return the display name of a node."""
    return f"{host or 'unknown'} ({id[:6]})"


class _Local(NamedTuple):
    """Cluster started by this process."""

    scratch: Scratch
    cpus: int
    spare: dict[Hashable, list[Any]]  # idle actors by settings, for later runs of this process


_local: list[_Local] = []  # at most one
_secret: dict[str, str] = {}  # environment variables of local clusters; Ray reads them once per process


def connect(cpus: float) -> Any:
    """Connect to the cluster, unless connected, and return the ray module; a local cluster gets at least `cpus`."""
    address = os.environ.get(ADDRESS, "").strip()
    alone = address in ("", "local")
    if sys.platform == "win32":
        raise ValueError("The engine ray needs Linux or macOS; on this machine there is --engine processes.")
    if address.startswith("ray://"):
        raise ValueError(
            f"{ADDRESS} must be HOST:PORT of the cluster's head, got {truncate(address)}; "
            "start the command on a machine of the cluster."
        )
    if _secret and not alone:
        raise ValueError(f"{ADDRESS} must not be set in a process that has had a cluster of its own; start another.")
    if _local and _local[0].cpus < cpus:
        disconnect()
    if alone and "ray" not in sys.modules and not {MODE, TOKEN} & os.environ.keys():
        _secret.update({MODE: "token", TOKEN: secrets.token_hex(32)})  # a local cluster listens on the network
    with _environment(_secret):
        ray = load_ray()
        if not ray.is_initialized():
            with _undisturbed():
                if alone:
                    _start(ray, max(cores(), math.ceil(cpus)))
                else:
                    _join(ray, address)
            worker: Any = import_module("ray._private.worker")
            if hasattr(worker, "print_to_stdstream"):  # prints about ended actors although logging is turned off
                worker.print_to_stdstream = lambda *_, **__: None
    return ray


def load_ray() -> Any:
    """Import Ray; raise a ValueError with the install command if it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning of some Ray versions
    try:
        return import_module("ray")
    except ImportError as error:
        raise ValueError(f"Ray cannot be imported ({error}): pip install '.[ray]' in a checkout.") from error


def spare_actors(settings: Hashable = None) -> list[Any] | None:
    """Return the idle actors with these settings on a local cluster, and end the others; None on a shared cluster.

    Starting an actor takes seconds, and a local cluster has no other use; on a shared cluster, actors end with their
    run.
    """
    if not _local:
        return None
    idle = _local[0].spare
    for handle in [handle for other in idle.keys() - {settings} for handle in idle.pop(other)]:
        load_ray().kill(handle)
    return idle.setdefault(settings, [])


def describe() -> str:
    """Return a sentence that names the connected cluster."""
    if _local:
        return f"A cluster of {_local[0].cpus} cores was started on this machine, for {ADDRESS} names no other one."
    address = load_ray().get_runtime_context().gcs_address
    return f"Connected to the cluster at {truncate(address)}."


def nodes(ray: Any) -> list[Node]:
    """List the alive nodes."""
    alive = (
        Node(
            node["NodeID"],
            node["NodeManagerHostname"],
            node["Resources"].get("CPU", 0),
            node["Resources"].get("GPU", 0),
        )
        for node in ray.nodes()
        if node["Alive"]
    )
    return sorted(alive, key=lambda node: (node.host, node.id))


def on_node(id: str) -> Any:
    """Return a scheduling strategy that pins an actor to a node."""
    return import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(id, soft=False)


@atexit.register
def disconnect() -> None:
    """End the local cluster of this process, if any; shared clusters are not affected."""
    while _local:
        local = _local.pop()
        load_ray().shutdown()
        local.scratch.remove()


def _start(ray: Any, cpus: int) -> None:
    """Start a private cluster on this machine; retry after timeouts, which occur on a busy machine."""
    source = str(Path(__file__).resolve().parents[3])  # actors must import this package from the same place
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    for attempt in range(TRIES):
        scratch = Scratch(short_folder())
        try:
            with _environment({"PYTHONPATH": paths}):
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=STORE,
                    _temp_dir=str(scratch.folder / "r"),  # world-readable, but its parent is private
                    **_options(),
                )
            _local.append(_Local(scratch, cpus, {}))
            _watch(ray, scratch)
            return
        except BaseException as error:
            ray.shutdown()
            scratch.remove()
            if not isinstance(error, Exception):
                raise
            if attempt == TRIES - 1 or "timed out" not in str(error).lower():
                raise Failed(f"No Ray cluster can be started on this machine: {reason(error)}.") from error


def _watch(ray: Any, scratch: Scratch) -> None:
    """Report an early exit of the local raylet, on which Ray would end this process without a message."""
    try:
        raylet = ray._private.worker._global_node.all_processes["raylet"][0].process
    except (AttributeError, LookupError):  # private attributes differ between Ray versions
        return

    def wait() -> None:
        code = raylet.wait()
        if ray.is_initialized() and any(local.scratch is scratch for local in _local):
            text = f"protonorm: The Ray cluster of this process has ended: its raylet {exit_text(code)}. {RESUME}"
            os.write(2, f"{text}\n".encode())  # Ray is about to end the process
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _join(ray: Any, address: str) -> None:
    """Connect to the cluster at an address."""
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise Failed(f"Nothing answers at {truncate(address)}, which {ADDRESS} names: {error}.") from error
    try:
        ray.init(address=address, **_options())
    except Exception as error:
        ray.shutdown()
        raise Failed(
            f"The Ray cluster at {truncate(address)} cannot be used: {reason(error)}. "
            f"Is it a cluster of the same versions of Ray and Python, and {TOKEN} or ~/.ray/auth_token its token?"
        ) from error


class _NoPaths(list[str]):
    """Always empty search path for actors: Ray would add the working directory, where a torch.py could shadow torch."""

    def extend(self, _: Iterable[str]) -> None:
        """Ignore the paths."""


def _options() -> dict[str, Any]:
    """Return options of ray.init that suppress output of actors and do not pass on this machine's search path."""
    config: Any = import_module("ray.job_config").JobConfig()
    config._py_driver_sys_path = _NoPaths()
    return {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": config}


def short_folder() -> Path:
    """Return a temporary folder whose path is short enough for socket names."""
    default = Path(tempfile.gettempdir())
    return default if len(os.fsencode(default)) <= SOCKETS else Path("/tmp")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables inside the context."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def reason(error: BaseException) -> str:
    """Shorten an error message of Ray to one line."""
    lines = [COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and "in its creation task" not in line]
    informative = (line for mark in ("No module named", "because") for line in reversed(lines) if mark in line)
    return truncate(next(informative, "".join(lines[-1:])).rstrip(".") or type(error).__name__)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Suppress Ray's log messages while it connects, and restore the SIGTERM handler, which it replaces."""
    logger, main = logging.getLogger("ray"), threading.current_thread() is threading.main_thread()
    level, handler = logger.level, signal.getsignal(signal.SIGTERM) if main else None
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
