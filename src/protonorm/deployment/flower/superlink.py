"""Flower's server in this process: its node protocol alone, over TLS, for the clients of the roster.

Its state is in memory; only the federation's folder is persistent. After a restart clients register again, and requests
are repeated.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from flwr.app import Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, SubStatus
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from protonorm.deployment.flower.gate import Gate, application
from protonorm.deployment.flower.transport import (
    MOST_OBJECTS,
    SPARE,
    TTL,
    TYPE,
    Delivered,
    failure,
    key_bytes,
    unwrap,
    wrap,
)
from protonorm.deployment.settings import address_of
from protonorm.errors import Failed

BEAT = 10.0  # seconds between two heartbeats of the run, without which Flower ends it
STARTING, ENDING = 30.0, 5.0  # seconds
LONGEST_HEAD = 2**14  # maximal bytes of a request's headers
IDLE = 75  # seconds after which an idle connection is closed
LAST_WORDS = 0.3  # seconds to finish responses when the server ends
UPLOAD = 86400  # seconds to upload a part of an answer; Flower's 180 are too few for a slow connection


class Certificate(NamedTuple):
    """Paths of the server's certificate and key."""

    certificate: Path
    key: Path


class SuperLink:
    """Server in a background thread, used as a context manager."""

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
        getLogger("flwr").setLevel(CRITICAL)  # the gate reports denied requests
        objects = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), objects)
        state = factory.state()
        assert isinstance(state, InMemoryLinkState)
        self.state = state
        self.arrived = threading.Event()  # set when an upload has arrived
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
        """Port that the server listens at."""
        found: int = self._socket.getsockname()[1]
        return found

    @property
    def run(self) -> int:
        """Id of Flower's run; a new run is created if Flower has ended the last."""
        if not self._task or not self.state.acknowledge_task_heartbeat(self._task):
            self._begin_run()
        return self._run

    def admit(self, lines: Iterable[str]) -> None:
        """Admit clients by their public keys, in OpenSSH format."""
        for key in (key_bytes(line) for line in lines):
            if key not in self.gate.keys:
                self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
                self.gate.keys |= {key}

    def notify(self, keys: Sequence[bytes]) -> None:
        """Notify clients with held requests that there is work."""
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
            http="h11",  # the implementation that limits the size of headers
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
        """Answer all held requests, then abort connections: an idle client does not notice a graceful shutdown."""
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
        """Create a Flower run, to which messages belong; the requests of the last run are repeated."""
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
    """Bind the port before anything else, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise Failed(f"The server cannot listen at {address_of(host, port)}: {error.strerror or error}.") from None
    return found


class Coming(NamedTuple):
    """Answer with missing parts."""

    id: str
    node: int
    since: float  # time when its first part was seen


class LinkCarrier:
    """Carrier over Flower's server in this process."""

    def __init__(self, link: SuperLink) -> None:
        self._link, self._state = link, link.state
        self._keys: dict[int, bytes] = {}
        self._coming: dict[str, Coming] = {}  # incomplete answers, by message id of the request

    def nodes(self) -> Iterable[NodeInfo]:
        """List the connected nodes."""
        found = list(self._state.get_node_info(node_ids=list(self._state.get_nodes(self._link.run))))
        self._keys |= {one.node_id: one.public_key for one in found}
        return found

    def push(self, contents: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send bytes to nodes; return message ids by node."""
        run = self._link.run
        sent = {node: id for node, content in contents.items() if (id := self._store(_message(run, node, content)))}
        self._link.notify([self._keys[node] for node in sent if node in self._keys])
        return sent

    def _store(self, message: Message) -> str:
        """Store a message and its parts in Flower; return its id, or "" on failure."""
        run, id = message.metadata.run_id, message.metadata.message_id
        session = self._state.start_session(run)
        bare = remove_content_from_message(message)
        stored, missing = self._state.store_message_and_object_tree(bare, get_object_tree(message), session)
        parts = get_all_nested_objects(message)
        done = stored and all(self._state.store_object(run, session, one, parts[one].deflate()) for one in missing)
        return id if done else ""

    def withdraw(self, ids: Iterable[str]) -> None:
        """Delete messages that have not been fetched completely."""
        for id in ids:
            if id in self._state.object_store:  # Flower deletes the parts once the node has all of them
                self._forget(id)

    def pull(self, ids: Sequence[str]) -> Mapping[str, Delivered]:
        """Return the replies to messages that have arrived."""
        found: dict[str, Delivered] = {}
        for message in self._state.get_message_res({id for id in ids if id not in self._coming}, self._link.run):
            about = message.metadata  # verified by Flower's server, unlike the answer's content
            if message.has_error():
                found[about.reply_to_message_id] = failure(message, about.src_node_id == SUPERLINK_NODE_ID)
                self._forget(about.reply_to_message_id, about.message_id)
            else:
                self._coming[about.reply_to_message_id] = Coming(about.message_id, about.src_node_id, time.time())
        for asked in [id for id in ids if id in self._coming]:
            whole = self._whole(self._coming[asked].id)
            if whole is not None:
                found[asked] = whole
                self._forget(asked, self._coming.pop(asked).id)
        return found

    def _forget(self, asked: str, answer: str = "") -> None:
        """Delete a message and its answer, only once it is complete, so that it can be sent again from the start."""
        self._state.delete_messages({asked})
        for id in (asked, answer):
            self._state.object_store.delete(id)

    def _whole(self, id: str) -> Delivered | None:
        """Assemble an answer; None if parts are still missing."""
        try:
            names = [one.object_id for one in iterate_object_tree(self._state.object_store.get_object_tree(id))]
        except Exception:  # Flower has deleted it: not all parts arrived in time
            return Delivered(away=True)
        if len(names) > MOST_OBJECTS:
            return Delivered()
        found = {name: self._state.get_object(self._link.run, name) for name in names}
        parts = {name: part for name, part in found.items() if part is not None}
        if len(parts) < len(found):
            return Delivered(away=True)  # it was deleted just now
        if not all(parts.values()):
            return None
        try:
            message = inflate_object_from_contents(id, parts)
            return Delivered(unwrap(message) if isinstance(message, Message) else b"")
        except Exception:  # clients may send anything; the guard reports that it is no message
            return Delivered()

    def lost(self, id: str) -> bool:
        """Return whether a message was fetched but did not arrive: its node requests work again without answering.

        A lost message is deleted.
        """
        if id in self._coming:
            return self._broken_off(id)
        with self._state.lock:
            message = self._state.message_ins_store.get(id)
            if message is None or not message.metadata.delivered_at:
                return False
            if id in self._state.message_ins_id_to_message_res_id:
                return False
            fetched = dt.datetime.fromisoformat(message.metadata.delivered_at).timestamp()
            if self._asked(message.metadata.dst_node_id) <= fetched:
                return False
            self._forget(id)
            return True

    def _broken_off(self, id: str) -> bool:
        """Return whether an answer stays incomplete, since its node requests work again; delete its parts then."""
        coming = self._coming[id]
        if self._asked(coming.node) <= coming.since or self._whole(coming.id) is not None:
            return False
        del self._coming[id]
        self._forget(id, coming.id)
        return True

    def _asked(self, node: int) -> float:
        """Return the time of a node's last request for work."""
        return self._link.gate.asked.get(self._keys.get(node, b""), 0.0)

    def wait(self, seconds: float) -> None:
        """Wait until something may have arrived."""
        self._link.arrived.wait(seconds)
        self._link.arrived.clear()


def _message(run: int, node: int, content: bytes) -> Message:
    """Create a Flower message from the server."""
    about = Metadata(run, "", SUPERLINK_NODE_ID, node, "", "", time.time(), TTL, TYPE)
    made = make_message(content=wrap(content), metadata=about)
    about.__dict__["_message_id"] = made.object_id
    return made
