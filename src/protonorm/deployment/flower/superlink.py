"""Flower's server in this process: its node protocol alone, over TLS, for the clients of the roster.

What it knows is in memory: the federation's folder is what survives. After a restart clients activate themselves again,
and are asked again.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SubStatus
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from protonorm.deployment.flower.envelope import SPARE
from protonorm.deployment.flower.fleet_api import application, key_bytes
from protonorm.deployment.flower.gate import Gate
from protonorm.deployment.terms import address_of
from protonorm.errors import Failed

BEAT = 10.0  # seconds between two signs of life of the run, which Flower ends without them
STARTING, ENDING = 30.0, 5.0  # seconds
LONGEST_HEAD = 2**14  # bytes of a request's first lines
IDLE = 75  # seconds after which a connection on which nothing happens is closed
LAST_WORDS = 0.3  # seconds that answers have when the server ends
UPLOAD = 86400  # seconds that a part of an answer may take; with Flower's 180 a slow line would never deliver any


class Certificate(NamedTuple):
    """The server's certificate and its key."""

    certificate: Path
    key: Path


class SuperLink:
    """Serve clients in a thread of its own; use it as a context."""

    def __init__(
        self,
        host: str,
        port: int,
        certificate: Certificate | None,
        largest: int,
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        vars(in_memory_corestate)["OBJECT_PUSH_SESSION_TTL_SECONDS"] = UPLOAD
        getLogger("flwr").setLevel(CRITICAL)  # whom it refuses is told by the gate
        objects = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), objects)
        state = factory.state()
        assert isinstance(state, InMemoryLinkState)
        self.state = state
        self.arrived = threading.Event()  # something came since somebody looked
        self.gate = Gate(
            application(factory), largest + SPARE, tell=tell, arrived=self.arrived.set, active=self._is_active
        )
        self._certificate = certificate
        self._socket = _listen(host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        self._task = self._run = 0
        self._server = uvicorn.Server(self._loaded())
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._serve, self._beat)]

    @property
    def port(self) -> int:
        """Give the port at which it listens."""
        found: int = self._socket.getsockname()[1]
        return found

    @property
    def run(self) -> int:
        """Give the number of Flower's run; there is a new one if Flower has ended the last."""
        if not self._task or not self.state.acknowledge_task_heartbeat(self._task):
            self._begin_run()
        return self._run

    def admit(self, lines: Iterable[str]) -> None:
        """Let clients in by their public keys, each a line as OpenSSH writes it."""
        for key in (key_bytes(line) for line in lines):
            if key not in self.gate.keys:
                self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
                self.gate.keys |= {key}

    def notify(self, keys: Sequence[bytes]) -> None:
        """Tell clients whose questions are held that there is work for them."""
        if self._loop is not None:
            for key in keys:
                self._loop.call_soon_threadsafe(self.gate.deliver, key)

    def __enter__(self) -> SuperLink:
        for thread in self._threads:
            thread.start()
        end = time.monotonic() + STARTING
        while not self._server.started:
            if not self._threads[0].is_alive() or time.monotonic() > end:
                raise Failed("The server could not be started.")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._task:
            self.state.finish_task(self._task, SubStatus.COMPLETED, "")
        self._server.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._release)
        for thread in self._threads:
            thread.join(2 * ENDING)
        self._socket.close()

    def _is_active(self, key: bytes) -> bool:
        node = self.state.get_node_id_by_public_key(key)
        return node is not None and self.state.get_node_info(node_ids=[node])[0].status == NodeStatus.ONLINE

    def _loaded(self) -> uvicorn.Config:
        made = self._configuration()
        try:
            made.load()
        except (ssl.SSLError, OSError) as error:
            self._socket.close()
            raise Failed(f"The server's certificate and key cannot be used: {error.strerror or error}.") from None
        return made

    def _configuration(self) -> uvicorn.Config:
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            tls = {"ssl_certfile": self._certificate.certificate, "ssl_keyfile": self._certificate.key}
        return uvicorn.Config(
            self.gate,
            lifespan="off",
            ws="none",
            http="h11",  # the one that bounds what comes before a request's content
            h11_max_incomplete_event_size=LONGEST_HEAD,
            timeout_keep_alive=IDLE,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(ENDING),
            **tls,
        )

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

    def _release(self) -> None:
        """Answer all questions that are held, and then wait for nobody: an idle client does not notice a goodbye."""
        self.gate.release()

        def end() -> None:
            for one in list(self._server.server_state.connections):
                one.transport.abort()
            asyncio.get_running_loop().call_later(LAST_WORDS, end)

        asyncio.get_running_loop().call_later(LAST_WORDS, end)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            if self._task:
                self.state.acknowledge_task_heartbeat(self._task)

    def _begin_run(self) -> None:
        """Begin a run of Flower's, which is what its messages belong to; those of the last one are asked again."""
        if self._run:
            self.state.cleanup_run(self._run)
        self._run = self.state.create_run(
            "protonorm/federation", "1", None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        task = self.state.get_run_info(run_ids=[self._run])[0].primary_task_id
        if task is None or not self.state.claim_task(task) or not self.state.activate_task(task):
            raise Failed("Flower did not begin a run.")
        self._task = task


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before anything else, so that one that is in use is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise Failed(f"The server cannot listen at {address_of(host, port)}: {error.strerror or error}.") from None
    return found
