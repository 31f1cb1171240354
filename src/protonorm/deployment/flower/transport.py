"""Requests and answers over Flower: their envelope, Flower's grid as a carrier, and repetition of lost requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from protonorm.core.types import shortened
from protonorm.deployment.engine import Arrived

TYPE = "train"  # Flower's type of all messages; the actual kind is in the content
RECORD, VALUE = "protonorm", "frame"
MOST_OBJECTS = 8  # maximal number of objects that Flower may split a message into; ours have three
SPARE = 2**14  # maximal bytes that Flower adds
TTL = 30 * 86400.0  # seconds after which Flower deletes a message
INTERVAL = 0.1  # seconds between two polls of Flower's grid
GONE = {ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE}
GRACE = 30.0  # seconds that a disconnected client has to come back before it is reported as lost
LOOK = 0.25  # seconds between two checks of the connected nodes
MOST_FORMER = 10_000  # maximal number of past requests whose late answers are collected
Known = Callable[[Iterable[NodeInfo]], Mapping[int, int]]  # connected nodes -> node by client


def wrap(content: bytes) -> RecordDict:
    """Wrap bytes in a Flower record."""
    return RecordDict({RECORD: ConfigRecord({VALUE: content})})


def unwrap(message: Message) -> bytes:
    """Return the bytes in a message; b"" if it contains anything else."""
    if not message.has_content():
        return b""
    record = message.content.get(RECORD)
    found = record.get(VALUE) if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, bytes) else b""


def reply(content: bytes, to: Message) -> Message:
    """Create the reply to a Flower message."""
    return Message(wrap(content), reply_to=to)


class Delivered(NamedTuple):
    """Reply to a message, or its failure."""

    content: bytes = b""
    failure: str = ""
    away: bool = False  # whether the node disconnected and must be asked again


class Carrier(Protocol):
    """Carrier of bytes to nodes and back; the reply to a message is from the node that received it."""

    def nodes(self) -> Iterable[NodeInfo]:
        """List the connected nodes."""

    def push(self, contents: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send bytes to nodes; return message ids by node."""

    def withdraw(self, ids: Iterable[str]) -> None:
        """Delete messages that have not been fetched completely."""

    def pull(self, ids: Sequence[str]) -> Mapping[str, Delivered]:
        """Return the replies to messages that have arrived."""

    def lost(self, id: str) -> bool:
        """Return whether a message was fetched but did not arrive: its node requests work again without answering."""

    def wait(self, seconds: float) -> None:
        """Wait until something may have arrived."""


class GridCarrier:
    """Carrier over the grid that Flower passes to a ServerApp."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Iterable[NodeInfo]:
        """List the connected nodes."""
        return self._grid.get_nodes()

    def push(self, contents: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send bytes to nodes; return message ids by node."""
        messages = [Message(wrap(content), node, TYPE, ttl=TTL) for node, content in contents.items()]
        ids = list(self._grid.push_messages(messages)) if messages else []
        return {node: id for node, id in zip(contents, ids, strict=False) if id}

    def withdraw(self, ids: Iterable[str]) -> None:
        """Do nothing: Flower's grid cannot delete messages."""

    def pull(self, ids: Sequence[str]) -> Mapping[str, Delivered]:
        """Return the replies that have arrived, pulled one by one because a reply's own metadata are not trusted."""
        found = {}
        for id in ids:
            for message in self._grid.pull_messages([id]):
                failed = message.has_error()
                found[id] = failure(message, message.error.code in GONE) if failed else Delivered(unwrap(message))
        return found

    def lost(self, id: str) -> bool:
        """Return False: Flower's grid does not report it."""
        return False

    def wait(self, seconds: float) -> None:
        """Wait for at most one polling interval."""
        time.sleep(min(seconds, INTERVAL))


def failure(message: Message, away: bool) -> Delivered:
    """Convert an error that came in place of an answer."""
    reason = shortened(str(message.error.reason), 300)
    return Delivered(away=True) if away else Delivered(failure=f"its app failed ({reason})")


@dataclass
class Asked:
    """Pending request of a client."""

    content: bytes
    node: int = 0
    id: str = ""  # Flower's message id; empty while the client is disconnected
    away: float = 0.0  # time of the disconnection


class FlowerTransport:
    """Transport that carries requests to known clients and repeats them after reconnections."""

    def __init__(
        self, carrier: Carrier, known: Known, *, grace: float = GRACE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._carrier, self._known, self._grace, self._clock = carrier, known, grace, clock
        self._asked: dict[int, Asked] = {}
        self._former: dict[str, int] = {}  # client by message id of abandoned requests, whose answers are late
        self._looked = -LOOK

    def present(self) -> set[int]:
        """Return the ids of the connected clients."""
        return set(self._known(self._carrier.nodes()))

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send requests; return the reasons for clients that cannot be reached."""
        here = self._known(self._carrier.nodes())
        self._withdraw(requests)
        self._asked |= {client: Asked(content) for client, content in requests.items() if client in here}
        self._send([client for client in requests if client in here], here)
        reasons = {client: "it is not connected" for client in requests if client not in here}
        for client in [client for client in requests if client in here and not self._asked[client].id]:
            del self._asked[client]
            reasons[client] = "Flower did not take the request"
        return reasons

    def pull(self, seconds: float) -> Sequence[Arrived]:
        """Return what has arrived, waiting at most so many seconds if nothing has."""
        end = self._clock() + seconds
        while True:
            found = self._collect()
            left = end - self._clock()
            if found or left <= 0:
                return found
            self._carrier.wait(min(left, LOOK))

    def close(self) -> None:
        """Delete requests that have not been fetched."""
        self._withdraw(list(self._asked))

    def _withdraw(self, clients: Iterable[int]) -> None:
        """Abandon requests: delete those not fetched; remember the others, whose answers may still arrive."""
        asked = {client: self._asked.pop(client) for client in clients if client in self._asked}
        ids = {one.id: client for client, one in asked.items() if one.id}
        self._carrier.withdraw(ids)
        self._former = dict([*self._former.items(), *ids.items()][-MOST_FORMER:])

    def _send(self, clients: Sequence[int], here: Mapping[int, int]) -> None:
        """Send the requests of connected clients."""
        for client in clients:
            one = self._asked[client]
            one.node, one.id = here[client], ""
        ids = self._carrier.push({self._asked[client].node: self._asked[client].content for client in clients})
        for client in clients:
            self._asked[client].id = ids.get(self._asked[client].node, "")

    def _collect(self) -> list[Arrived]:
        """Collect arrived answers, and check on disconnected clients."""
        waiting = {one.id: client for client, one in self._asked.items() if one.id}
        found = []
        for id, what in self._carrier.pull([*waiting, *self._former]).items():
            if id in waiting:
                found += self._take(waiting[id], what)
            else:
                client = self._former.pop(id)
                found += [Arrived(client, what.content)] if what.content else []
        if self._clock() - self._looked >= LOOK:
            self._looked = self._clock()
            found += self._look_after()
        return found

    def _take(self, client: int, what: Delivered) -> list[Arrived]:
        one = self._asked[client]
        if what.away:
            one.id, one.away = "", self._clock()
            return []
        del self._asked[client]
        return [Arrived(client, what.content, what.failure)]

    def _look_after(self) -> list[Arrived]:
        """Repeat requests of clients that reconnected or lost theirs; give up on clients that stay disconnected."""
        if not self._asked:
            return []
        here = self._known(self._carrier.nodes())
        again = []
        for client, one in self._asked.items():
            lost = one.id and self._carrier.lost(one.id)
            if client in here and (lost or not one.id or here[client] != one.node):
                again.append(client)
        self._carrier.withdraw([self._asked[client].id for client in again if self._asked[client].id])
        self._send(again, here)
        gone = [client for client, one in self._asked.items() if not one.id and client not in here]
        gone = [client for client in gone if self._clock() - self._asked[client].away > self._grace]
        for client in gone:
            del self._asked[client]
        return [Arrived(client, failure="it went away and did not come back") for client in gone]


def by_key(lines: Mapping[int, str]) -> Known:
    """Identify clients by their public keys, which Flower has verified; `lines` has an OpenSSH key by client id."""
    numbers = {key_bytes(line): client for client, line in lines.items()}

    def known(nodes: Iterable[NodeInfo]) -> dict[int, int]:
        return {numbers[one.public_key]: one.node_id for one in nodes if one.public_key in numbers}

    return known


def key_bytes(line: str) -> bytes:
    """Return a public key in Flower's encoding."""
    key = load_ssh_public_key(line.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return public_key_to_bytes(key)
