"""The Ray cluster of this process: the one that RAY_ADDRESS names, or one of its own on this machine.

Ray is imported when this engine is asked for, and by nobody else.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from protonorm.core.own_failures import in_few
from protonorm.core.scratch import Scratch
from protonorm.engines.ray.quiet import hush, quiet, reason, same_sigterm
from protonorm.errors import Failed

ADDRESS = "RAY_ADDRESS"  # in the environment; nothing or `local` for a cluster of one's own
SOCKETS = 107 - len("/protonorm-12345678/r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
TRIES = 3  # of starting a cluster
STORE = 2**30  # bytes of a local cluster's object store: replies on their way, and data in pieces
REACH = 10.0  # seconds for a cluster to answer at all; Ray itself would try for minutes
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


class Node(NamedTuple):
    """A living node of the cluster."""

    id: str
    host: str
    cpus: float
    gpus: float

    def __str__(self) -> str:
        """Name the node in a sentence; several may be on one machine."""
        return node_name(self.host, self.id)


def node_name(host: str, id: str) -> str:
    """Name a node in a sentence."""
    return f"{host or 'unknown'} ({id[:6]})"


class _Local(NamedTuple):
    """The cluster that this process has started."""

    scratch: Scratch
    cpus: int
    spare: dict[Hashable, list[Any]]  # idle actors by their settings: for the next run of this process


_local: list[_Local] = []  # at most one
_secret: dict[str, str] = {}  # variables of the environment for clusters of our own; Ray reads them once a process


def connect(cpus: float) -> Any:
    """Connect to the cluster, unless this process is connected, and give Ray; `cpus` are needed if it is our own."""
    address = os.environ.get(ADDRESS, "").strip()
    _refuse(address)
    alone = address in ("", "local")
    if _secret and not alone:
        raise ValueError(f"{ADDRESS} is refused in a process that has had a cluster of its own: start another process.")
    if _local and _local[0].cpus < cpus:
        disconnect()
    with _protected(alone):
        ray = load_ray()
        if not ray.is_initialized():
            with quiet(), same_sigterm():
                if alone:
                    _start(ray, max(cores(), math.ceil(cpus)))
                else:
                    _join(ray, address)
            hush()
    return ray


def load_ray() -> Any:
    """Import Ray, or say how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it some versions of Ray warn of it
    try:
        return import_module("ray")
    except ImportError as error:
        raise ValueError(f"Ray cannot be imported ({error}): pip install 'protonorm[ray]'.") from error


def spare_actors(settings: Hashable = None) -> list[Any] | None:
    """Give the idle actors of such settings on a cluster of our own, and end the others; None on a foreign cluster.

    To start an actor takes seconds, and a cluster of our own has nothing else to do; on one that others use too,
    actors end with their run.
    """
    if not _local:
        return None
    spare = _local[0].spare
    for other in [other for other in spare if other != settings]:
        for handle in spare.pop(other):
            load_ray().kill(handle)
    return spare.setdefault(settings, [])


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> str:
    """Say in a sentence which cluster this process is connected to."""
    if _local:
        return f"A cluster of {_local[0].cpus} cores was started on this machine, for {ADDRESS} names no other one."
    address = load_ray().get_runtime_context().gcs_address
    return f"Connected to the cluster at {in_few(address)}."


def nodes(ray: Any) -> list[Node]:
    """List the living nodes."""
    found = (
        Node(one["NodeID"], one["NodeManagerHostname"], one["Resources"].get("CPU", 0), one["Resources"].get("GPU", 0))
        for one in ray.nodes()
        if one["Alive"]
    )
    return sorted(found, key=lambda node: (node.host, node.id))


def on_node(id: str) -> Any:
    """Tell Ray to start something on one node and nowhere else."""
    return import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(id, soft=False)


@atexit.register
def disconnect() -> None:
    """End the cluster that this process has started, if any; others are left as they are."""
    while _local:
        local = _local.pop()
        load_ray().shutdown()
        local.scratch.remove()


def _start(ray: Any, cpus: int) -> None:
    """Start a cluster on this machine, for this process alone; Ray gives up too soon on a machine that is busy."""
    before = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).resolve().parents[3])  # where this package is; actors are to find the same one
    os.environ["PYTHONPATH"] = os.pathsep.join([here, before] if before else [here])
    try:
        for attempt in range(TRIES):
            scratch = Scratch(short_folder())
            try:
                _start_in(ray, cpus, scratch.folder / "r")
                _local.append(_Local(scratch, cpus, {}))
                return
            except BaseException as error:
                ray.shutdown()
                scratch.remove()
                if not isinstance(error, Exception):
                    raise
                if attempt == TRIES - 1 or "timed out" not in str(error).lower():
                    raise Failed(f"No Ray cluster can be started on this machine: {reason(error)}.") from error
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ.update({} if before is None else {"PYTHONPATH": before})


def _start_in(ray: Any, cpus: int, folder: Path) -> None:
    """Start a cluster; Ray opens its folder to everybody, but not the one above."""
    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=STORE,
        _temp_dir=str(folder),
        **_options(),
    )


def _join(ray: Any, address: str) -> None:
    """Connect to the cluster at an address."""
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise Failed(f"Nothing answers at {in_few(address)}, which {ADDRESS} names: {error}.") from error
    try:
        ray.init(address=address, **_options())
    except Exception as error:
        ray.shutdown()
        raise Failed(
            f"The Ray cluster at {in_few(address)} cannot be used: {reason(error)}. "
            f"Is it a cluster of the same versions of Ray and Python, and {TOKEN} or ~/.ray/auth_token its token?"
        ) from error


class _NoPaths(list[str]):
    """Search paths for the actors: none of ours. Ray would add the current folder, in which any torch.py may lie."""

    def extend(self, _: Iterable[str]) -> None:
        """Leave it as it is."""


def _options() -> dict[str, Any]:
    """Keep what actors print out of the terminal, and this machine's folders out of the actors."""
    config: Any = import_module("ray.job_config").JobConfig()
    config._py_driver_sys_path = _NoPaths()
    return {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": config}


def short_folder() -> Path:
    """Find a folder for temporary files whose name leaves room for that of a socket."""
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) <= SOCKETS else Path("/tmp")


@contextmanager
def _protected(alone: bool) -> Iterator[None]:
    """Let nobody else on the network use a cluster of our own: it listens there, and obeys whoever knows the token."""
    if alone and "ray" not in sys.modules and not {MODE, TOKEN} & os.environ.keys():
        _secret.update({MODE: "token", TOKEN: secrets.token_hex(32)})
    os.environ.update(_secret)
    try:
        yield
    finally:
        for name in _secret:
            os.environ.pop(name, None)


def _refuse(address: str) -> None:
    """Refuse what Ray can be used with, but we cannot."""
    if sys.platform == "win32":
        raise ValueError("The engine ray needs Linux or macOS; on this machine there is --engine processes.")
    if address.startswith("ray://"):
        raise ValueError(
            f"{ADDRESS}={in_few(address)} is refused: start the command on a machine of the cluster, "
            f"with {ADDRESS}=HOST:PORT of its head."
        )
